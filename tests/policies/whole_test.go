// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// inMode is the slice of a node in a mode, with one GPU, and with allowMultipleAllocations as an API server stores it.
func inMode(m mode.Mode, kept *bool) *resourceapi.ResourceSlice {
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "NVIDIA-A10", MemoryMiB: 23028}}}
	pool := v1alpha1.PoolName("n1")
	built := devices.Build(machine, devices.Options{Pool: pool, Mode: m, Slots: 20, Isolation: "none",
		IsolationLevel: "none"})
	d := built.Pools[pool].Slices[0].Devices[0]
	d.AllowMultipleAllocations = kept
	return slice(func(s *sliceSpec) { s.Devices = []resourceapi.Device{d} })
}

// deviceModes are those that Build makes a GPU's device in.
var deviceModes = []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology}

// An API server that drops allowMultipleAllocations, and asks the policies afterwards, does not store the GPU: neither
// in a new slice nor in one that is there. It says so to a dry run, which stores nothing, by what it keeps.
func TestNoShareIsStoredAsAWholeGPU(t *testing.T) {
	s := newServer(t)
	plugin := account("other", "gpu-kubelet-plugin", "n1")
	const refused = "is to be shared, and would be stored as one for a single claim: enable feature gate " +
		"DRAConsumableCapacity"
	for _, m := range deviceModes {
		for _, kept := range []*bool{nil, ptr.To(false), ptr.To(true)} {
			want := ""
			if m.Shared() && !ptr.Deref(kept, false) {
				want = refused
			}
			if !m.Shared() && kept != nil {
				continue
			}
			of := inMode(m, kept)
			for _, old := range []*resourceapi.ResourceSlice{nil, slice(nil)} {
				expect.Error(t, s.validate(plugin, of, old), want)
			}
			asked := of.DeepCopy()
			asked.ObjectMeta = metav1.ObjectMeta{GenerateName: "preflight-"}
			if _, err := s.stored(plugin, asked, true); err != nil {
				t.Errorf("mode %s: a dry run is refused: %v", m, err)
			}
		}
	}
}

// In slices that are stored, no class selects a share's device as one for a single claim. What a class selects is the
// same where device.allowMultipleAllocations is evaluated as false.
func TestClassesSelectNoShareAsAWholeGPU(t *testing.T) {
	s := newServer(t)
	classes, err := deviceclasses.With([]string{"NVIDIA-A10"})
	expect.NoError(t, err)
	selected := 0
	for _, m := range deviceModes {
		for _, kept := range []*bool{nil, ptr.To(true)} {
			of := inMode(m, kept)
			if err := s.validate(account("other", "gpu-kubelet-plugin", "n1"), of, nil); err != nil {
				continue
			}
			for _, class := range classes {
				unseen, seen := selects(t, class, of.Spec.Devices[0], nil), selects(t, class, of.Spec.Devices[0], kept)
				if unseen != seen {
					t.Errorf("class %s selects a device in mode %s: %t where the field is seen, and %t where it is not", class.Name, m,
						seen, unseen)
				}
				if seen {
					selected++
				}
				if seen && m.Shared() && kept == nil {
					t.Errorf("class %s selects a device in mode %s as a whole", class.Name, m)
				}
			}
		}
	}
	if selected < len(deviceModes) {
		t.Errorf("classes select %d devices only", selected)
	}
}

func selects(t *testing.T, class *resourceapi.DeviceClass, d resourceapi.Device, seen *bool) bool {
	t.Helper()
	for _, selector := range class.Spec.Selectors {
		compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(
			selector.CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			t.Fatalf("class %s: %v", class.Name, compiled.Error)
		}
		matches, _, err := compiled.DeviceMatches(t.Context(), cel.Device{Driver: v1alpha1.DriverName,
			AllowMultipleAllocations: seen, Attributes: d.Attributes, Capacity: d.Capacity})
		if err != nil {
			t.Fatalf("class %s: %v", class.Name, err)
		}
		if !matches {
			return false
		}
	}
	return true
}
