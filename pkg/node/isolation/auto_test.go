// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// The table of names and levels is that of the back ends.
func TestBackEndsAreThoseOfTheTable(t *testing.T) {
	r := NewRegistry(Config{CGPUProc: t.TempDir(), MPSDir: t.TempDir()})
	for _, want := range mode.Isolations() {
		b, err := r.ByName(want.Name)
		if err != nil || b.Name() != want.Name {
			t.Errorf("the back end of %s is %v, %v", want.Name, b, err)
		}
		if mode.ByMPS(want.Name) && want.Shares != mps.MaxClients {
			t.Errorf("%s keeps %d shares apart, and MPS takes %d clients", want.Name, want.Shares, mps.MaxClients)
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
			expect.NoError(t, err)
			expect.Equal(t, mode.AutoIsolation(m, test.module, test.kernel).Name, b.Name(),
				"mode %s, module %t, kernel %t: the driver chooses, a plan shows", m, test.module, test.kernel)
		}
	}
}
