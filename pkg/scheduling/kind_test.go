// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"reflect"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// With a selector by UUID each node is a kind of its own: what a device offers is kept twice only where pods without a
// claim have something of it.
func TestKindsKeepWhatIsOfferedOnce(t *testing.T) {
	a10 := func(index int, uuid string) gpu.GPU {
		return gpu.GPU{Index: index, UUID: uuid, Model: "NVIDIA-A10", MemoryMiB: 23028}
	}
	o := devices.Options{Pool: v1alpha1.PoolName("n"), Mode: mode.Share, Slots: 20,
		Room: map[string]gpu.Amount{"GPU-held": {Units: 2, Shares: 20}}, Limits: map[string]gpu.Amount{
			"GPU-free": {Units: 22, Shares: 20}}}
	m := &gpu.Machine{GPUs: []gpu.GPU{a10(0, "GPU-free"), a10(1, "GPU-held")}}
	built := devices.Build(m, o).Pools[o.Pool].Slices[0]
	k, err := newKind([]*view.Slice{view.Read(&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, Devices: built.Devices}})}, true)
	expect.NoError(t, err)
	for i, want := range []struct {
		offered string
		once    bool
	}{{"22Gi", true}, {"2Gi", false}} {
		offered, whole := k.offered[i][v1alpha1.CapMemory], k.Devices[i].Capacity[v1alpha1.CapMemory]
		once := reflect.ValueOf(k.offered[i]).Pointer() == reflect.ValueOf(k.Devices[i].Capacity).Pointer()
		if offered.Value.String() != want.offered || whole.Value.String() != "22Gi" || once != want.once {
			t.Errorf("device %d offers %s of %s, kept once: %v, want %+v", i, &offered.Value, &whole.Value, once, want)
		}
	}
}
