// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// The table of names and levels is that of the back ends.
func TestBackEndsAreThoseOfTheTable(t *testing.T) {
	r := NewRegistry(Config{CGPUProc: t.TempDir(), MPSDir: t.TempDir()})
	for _, want := range mode.Isolations() {
		b, err := r.ByName(want.Name)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := (mode.Isolation{Name: b.Name(), Level: b.Level(), Shares: b.MaxShares()}); got != want {
			t.Errorf("the back end has %+v, the table %+v", got, want)
		}
		if want.Level.Meaning() == "" {
			t.Errorf("explain has no words for level %s", want.Level)
		}
	}
}

// What a plan shows of a node's GPUs before the driver runs there is what the driver chooses then.
func TestAutoIsAsPlansSay(t *testing.T) {
	modes := append(mode.Dynamic.ServedModes(), mode.Topology, mode.MIG)
	for _, test := range []struct{ module, kernel bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		for _, m := range modes {
			c := Config{CGPUProc: t.TempDir() + "/none"}
			if test.module {
				c.CGPUProc = t.TempDir()
			}
			if test.kernel {
				c.Offered = map[mode.Mode]string{mode.CGPU: mode.IsolationKernel, mode.CoreMem: mode.IsolationKernel}
			}
			b, err := NewRegistry(c).For(m)
			if err != nil {
				t.Fatal(err)
			}
			got := mode.Isolation{Name: b.Name(), Level: b.Level(), Shares: b.MaxShares()}
			if want := mode.AutoIsolation(m, test.module, test.kernel); got != want {
				t.Errorf("mode %s, module %t, kernel %t: the driver chooses %+v, a plan shows %+v", m, test.module, test.kernel,
					got, want)
			}
		}
	}
}
