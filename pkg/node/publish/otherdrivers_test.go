// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// A GPU that another DRA driver grants, too, takes no claims of this one, in any mode.
func TestGPUsOfOtherDriversAreClosed(t *testing.T) {
	for label, want := range map[string]struct{ open, closed string }{
		"share": {shares, "gpu-0-share! gpu-1-share"}, "default": {whole, "gpu-0! gpu-1"},
	} {
		t.Run(label, func(t *testing.T) {
			b := newBench(t)
			b.mode(label)
			b.reconciled(t, true, want.open)
			b.nvidias = map[string][]string{"GPU-0": nil}
			b.reconciled(t, true, want.closed)
			b.saysOfOtherDrivers(t, "GPU 0 (gpu.nvidia.com): take")
			for _, d := range b.published[len(b.published)-1].Pools["n1/gpu"].Slices[0].Devices {
				for _, taint := range d.Taints {
					if taint.Key != v1alpha1.TaintOtherDriver || taint.Value != "gpu.nvidia.com" {
						t.Errorf("%s has taint %s=%s", d.Name, taint.Key, taint.Value)
					}
				}
			}
			b.nvidias = map[string][]string{"GPU-0": {"team/p"}}
			b.reconciled(t, true, want.closed)
			b.saysOfOtherDrivers(t, "GPU 0 (gpu.nvidia.com, held by team/p): take")
			if got, told := b.events.current[v1alpha1.ReasonHeldWithoutClaim]; told {
				t.Errorf("the Event of device plugins: %q", got)
			}
			b.nvidias = nil
			b.reconciled(t, true, want.open)
			b.saysOfOtherDrivers(t, "")
		})
	}
}

func (b *bench) saysOfOtherDrivers(t *testing.T, want string) {
	t.Helper()
	expect.Says(t, b.events.current[v1alpha1.ReasonOtherDriver], want)
}

// The node is the other driver's by its label: nothing is offered, whatever is published.
func TestNodeThatIsAnotherDrivers(t *testing.T) {
	b := sharing(t)
	b.label(map[string]string{"ack.node.gpu.schedule": "share", v1alpha1.LabelGPUDriver: "gpu.aliyun.com"})
	b.reconciled(t, true, shares)
	b.label(map[string]string{"ack.node.gpu.schedule": "share", v1alpha1.LabelGPUDriver: "gpu.nvidia.com"})
	b.switched(t, shareClosed, "")
	b.refusedBecause(t, "gpu.aliyun.com/gpu-driver=gpu.nvidia.com")
}

// MPS would keep the programs of another driver's pods off the GPU.
func TestGPUsOfOtherDriversAreNotGivenToMPS(t *testing.T) {
	b := newBench(t)
	defer b.supervised(t)()
	b.mode("mps")
	beside, alone := mps.Use{Beside: true}, mps.Use{Reserved: true}
	b.reconciled(t, true, "gpu-0-mps gpu-1-mps")
	b.uses(t, alone, alone)
	b.nvidias = map[string][]string{"GPU-0": nil}
	b.reconciled(t, true, "gpu-0-mps! gpu-1-mps")
	b.uses(t, beside, alone)
}

// Nor are those of pods of a device plugin: their next programs would be kept off the GPU.
func TestGPUsOfPodsWithoutAClaimAreNotGivenToMPS(t *testing.T) {
	b := newBench(t)
	defer b.supervised(t)()
	b.mode("mps")
	beside, alone := mps.Use{Beside: true}, mps.Use{Reserved: true}
	b.reconciled(t, true, "gpu-0-mps gpu-1-mps")
	b.uses(t, alone, alone)
	b.pods = []*corev1.Pod{oldPod("w", "0", "aliyun.com/gpu", "1")}
	b.reconciled(t, true, "gpu-0-mps! gpu-1-mps")
	b.uses(t, beside, alone)
	b.pods = nil
	b.reconciled(t, true, "gpu-0-mps gpu-1-mps")
	b.uses(t, alone, alone)
}
