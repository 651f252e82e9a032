// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
)

// NVIDIA's driver was taken off the node before this one came: its pods run on, and which GPUs they
// have, nobody tells any more. So none is offered before the kubelet has been asked, or while one may be theirs.
func TestPodsOfADriverThatLeftBeforeThisOneCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answers := unstarted(t), make(chan struct{})
		b.kubelet.says(nil, "team/p")
		b.kubelet.before = func() { <-answers }
		b.start(t)
		synctest.Wait()
		if reserved, err := b.Observe(t.Context(), b.machine); !errors.Is(err, held.ErrPodsUnread) {
			t.Errorf("before the kubelet answers: %+v, %v, want GPUs to be offered only after it", reserved, err)
		}
		close(answers)
		b.shows(t, nvidia+"[team/p]")
		// Also where the administrator says that the GPUs are this driver's, and for a plugin that restarts
		// while the kubelet does not answer.
		b.SetOwner(v1alpha1.DriverName)
		b.shows(t, nvidia+"[team/p]")
		b.kubelet.says(errors.New("it does not answer"))
		b.start(t)
		b.shows(t, nvidia+"[]")
		b.kubelet.says(nil)
		later()
		b.shows(t, "")
		later()
		asks := b.kubelet.wasAsked()
		later()
		expect.Equal(t, asks, b.kubelet.wasAsked(), "times the kubelet is asked though nobody has GPUs")
	})
}

// The driver comes back, and says which GPU its pods have.
func TestDriverThatComesBackSaysWhichGPUItsPodsHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unstarted(t)
		b.kubelet.says(nil, "team/p")
		b.machine = &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0"}, {Index: 1, UUID: "GPU-1"}}}
		b.start(t)
		closed := func(when string, want ...bool) {
			t.Helper()
			later()
			reserved, err := b.Observe(t.Context(), b.machine)
			expect.NoError(t, err)
			for i, g := range b.machine.GPUs {
				expect.Equal(t, want[i], reserved.GPU(g.UUID).Whole, "%s, GPU %d is closed", when, i)
			}
		}
		closed("before it is back", true, true)
		b.publish(t)
		closed("once it is back", true, false)
		b.withdraw(t)
		closed("when it has gone again", true, false)
		b.kubelet.says(nil)
		closed("when the pod has ended", false, false)
	})
}

// A kubelet that does not answer keeps no GPUs of a node back on which no other driver is known, and is asked again.
func TestKubeletThatAnswersLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unstarted(t)
		b.kubelet.says(errors.New("it does not answer"))
		b.start(t)
		b.shows(t, "")
		b.kubelet.says(nil, "team/p")
		later()
		b.shows(t, nvidia+"[team/p]")
	})
}

// Other drivers' pods say nothing of the GPUs: their devices may be anything.
func TestDevicesOfDriversThatAreNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unstarted(t)
		b.kubelet.pods = []podresources.Claimed{{Driver: "dra.cpu", Pool: "n1", Device: "cpudev000", Pod: "team/p"}}
		b.start(t)
		b.shows(t, "")
	})
}

// A file that cannot be read is set aside, and the administrator is told: what it said may be of pods that still run.
func TestDamagedFile(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "cut off": `[{"driver":"gpu.nv`, "another": `{"a":1}`,
		"null": "null"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := unstarted(t)
				expect.NoError(t, os.WriteFile(b.file, []byte(content), 0o600))
				b.kubelet.says(nil, "team/p")
				b.start(t)
				if aside := b.file + ".damaged"; len(b.damaged) != 1 || !strings.Contains(b.damaged[0].Error(), aside) {
					t.Errorf("told is %v, want where the file lies", b.damaged)
				}
				if kept, err := os.ReadFile(b.file + ".damaged"); err != nil || string(kept) != content {
					t.Errorf("set aside is %q, %v", kept, err)
				}
				b.shows(t, nvidia+"[team/p]")
				b.start(t)
				b.shows(t, nvidia+"[team/p]")
				expect.Equal(t, 1, len(b.damaged), "times told after the plugin restarted: %v", b.damaged)
			})
		})
	}
}
