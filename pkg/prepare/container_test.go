package prepare

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2/ktesting"
)

// Requests for one container, which has them all, say the same of its cards.
func TestRequestsOfOneContainer(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	c := sharesOf("u1", 0, 4, 1, 4, 1)
	devices := &c.Status.Allocation.Devices
	for i, device := range []string{"gpu-1-share", "gpu-1-share", "gpu-2-share", "gpu-2-share"} {
		devices.Results[i].Device = device
	}
	for container, requests := range map[string][]string{"a": {"r0", "r2"}, "b": {"r1", "r3"}} {
		devices.Config = append(devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: requests,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver:     "gpu.aliyun.com",
				Parameters: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","container":%q}`, container)},
			}},
		})
	}
	got, err := n.Prepare(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	for i, units := range []int{4, 1, 4, 1} {
		want := []string{"NVIDIA_VISIBLE_DEVICES=void", fmt.Sprintf("ALIYUN_COM_GPU_MEM_CONTAINER=%d", units), "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=1,2", "ALIYUN_COM_GPU_MEM_POD=10"}
		if diff := cmp.Diff(want, n.env(t, got[i].CDIDeviceIDs[0])); diff != "" {
			t.Errorf("environment of request %d (-want +got):\n%s", i, diff)
		}
	}
}
