// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const v100 = "Tesla-V100-SXM2-16GB"

// poolIn is what a node with two V100 publishes in a mode.
func poolIn(m mode.Mode) (*gpu.Machine, resourceslice.DriverResources) {
	machine := &gpu.Machine{}
	for i := range 2 {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: v100, MemoryMiB: 16130})
	}
	return machine, published(machine, m)
}

func asking(class string, amounts map[string]string) resourceapi.DeviceClaim {
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if amounts != nil {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for name, amount := range amounts {
			request.Capacity.Requests[resourceapi.QualifiedName(name)] = resource.MustParse(amount)
		}
	}
	return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: request}}}
}

// What the scheduler allocates to a claim of a class without a mode, the driver can
// prepare: a claim that it refuses would hang, and hold its share, until somebody
// looks.
func TestAnyModeIsAllocatedWhatCanBePrepared(t *testing.T) {
	const inAny, inCoreMem = "tesla-v100-sxm2-16gb.gpu.aliyun.com", "core-mem.tesla-v100-sxm2-16gb.gpu.aliyun.com"
	nothing, memory := map[string]string(nil), map[string]string{"memory": "4Gi"}
	both := map[string]string{"memory": "4Gi", "cores": "25"}
	for name, test := range map[string]struct {
		node mode.Mode
		// before is the class of a claim that is there already.
		before  string
		amounts map[string]string
		want    string
		units   int64
	}{
		"whole GPUs":               {mode.Exclusive, "", nothing, "gpu-0", 0},
		"whole GPUs, memory":       {mode.Exclusive, "", memory, "gpu-0", 0},
		"single of topology":       {mode.Topology, "", nothing, "gpu-0-topology", 0},
		"shares":                   {mode.Share, "", nothing, "gpu-0-share", 1},
		"shares, memory":           {mode.Share, "", memory, "gpu-0-share", 4},
		"shares, compute":          {mode.Share, "", both, "", 0},
		"cgpu":                     {mode.CGPU, "", nothing, "gpu-0-cgpu", 1},
		"cgpu, memory":             {mode.CGPU, "", memory, "gpu-0-cgpu", 4},
		"mps":                      {mode.MPS, "", nothing, "gpu-0-mps", 1},
		"mps, memory":              {mode.MPS, "", memory, "gpu-0-mps", 4},
		"core_mem":                 {mode.CoreMem, "", nothing, "", 0},
		"core_mem, memory":         {mode.CoreMem, "", memory, "", 0},
		"core_mem, both":           {mode.CoreMem, "", both, "", 0},
		"dynamic":                  {mode.Dynamic, "", nothing, "gpu-0", 0},
		"dynamic, shared":          {mode.Dynamic, "share.gpu.aliyun.com", nothing, "gpu-1", 0},
		"dynamic, mps and memory":  {mode.Dynamic, "mps.gpu.aliyun.com", memory, "gpu-1", 0},
		"dynamic, core_mem in use": {mode.Dynamic, inCoreMem, nothing, "gpu-1", 0},
		"dynamic, and memory":      {mode.Dynamic, inCoreMem, memory, "gpu-1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			installed, err := All()
			expect.NoError(t, err)
			machine, resources := poolIn(test.node)
			n := allocatortest.NewNode("n1", v1alpha1.DriverName, resources, append(installed, modelClasses(t, v100)...))
			if test.before != "" {
				amounts := memory
				if test.before == inCoreMem {
					amounts = both
				}
				if results, err := n.Allocate(ctx, asking(test.before, amounts)); err != nil || len(results) != 1 {
					t.Fatalf("the claim before: %v, %v", results, err)
				}
			}
			results, err := n.Allocate(ctx, asking(inAny, test.amounts))
			expect.NoError(t, err)
			if test.want == "" {
				if len(results) > 0 {
					t.Errorf("allocated %s, want nothing", results[0].Device)
				}
				return
			}
			grants, err := claim.Grants(&resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{
				Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
			}}, "n1/gpu", machine)
			expect.NoError(t, err)
			if len(grants) != 1 || grants[0].Device != test.want || grants[0].Units != test.units {
				t.Errorf("granted %+v, want %d units of %s", grants, test.units, test.want)
			}
		})
	}
}

// Who asks for two GPUs by shares must not be given two shares of one (NVIDIA/gpu-operator issue 386).
func TestSharesOfARequestAreOfDifferentGPUs(t *testing.T) {
	_, resources := poolIn(mode.Share)
	installed, err := All()
	expect.NoError(t, err)
	n := allocatortest.NewNode("n1", v1alpha1.DriverName, resources, installed)
	two := asking("share.gpu.aliyun.com", map[string]string{"memory": "2Gi"})
	two.Requests[0].Exactly.Count = 2
	rest := asking("share.gpu.aliyun.com", map[string]string{"memory": "13Gi"})
	expect.Equal(t, "gpu-0-share gpu-1-share", n.Devices(t, two), "two shares of 2 GiB")
	expect.Equal(t, "gpu-0-share", n.Devices(t, rest), "all that is left of a GPU")
	expect.Equal(t, "", n.Devices(t, two), "where one GPU has room for both")
}
