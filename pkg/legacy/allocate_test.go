// SPDX-License-Identifier: Apache-2.0

package legacy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
)

// node publishes four GPUs of 16130 MiB, 15 units each, or in mode topology those
// of a DGX-1.
func node(t *testing.T, m mode.Mode, isolation string) *allocatortest.Node {
	t.Helper()
	return nodeOf(t, 4, m, isolation)
}

func nodeOf(t *testing.T, gpus int, m mode.Mode, isolation string) *allocatortest.Node {
	t.Helper()
	machine := alike(gpus, "Tesla-V100-SXM2-16GB", 16130)
	if m == mode.Topology {
		machine = aDGX1(t)
	}
	options := devices.Options{Pool: "n1/gpu", Mode: m, Slots: 20, Isolation: isolation}
	if m != mode.Dynamic {
		return publishing(t, devices.Build(machine, options))
	}
	var perMode []devices.Options
	for _, served := range mode.Dynamic.ServedModes() {
		options.Mode = served
		perMode = append(perMode, options)
	}
	return publishing(t, devices.BuildDynamic(machine, perMode))
}

// alike returns a machine with so many GPUs of a model.
func alike(gpus int, model string, mib int64) *gpu.Machine {
	machine := &gpu.Machine{}
	for i := range gpus {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: model, MemoryMiB: mib})
	}
	return machine
}

func aDGX1(t *testing.T) *gpu.Machine {
	t.Helper()
	machine, err := topologytest.Machine(t.Context(), "../../demo/machines/dgx1.yaml")
	expect.NoError(t, err)
	return machine
}

// publishing is a node that publishes this, in a cluster with the installed classes, and more.
func publishing(
	t *testing.T, resources resourceslice.DriverResources, more ...*resourceapi.DeviceClass,
) *allocatortest.Node {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	return allocatortest.NewNode("n1", v1alpha1.DriverName, resources, append(classes, more...))
}

// mostPerNode is how long the scheduler looks at a node by default.
const mostPerNode = 10 * time.Second

// claimOf is a claim of a template.
func claimOf(t *testing.T, template string) *resourceapi.ResourceClaim {
	t.Helper()
	request, err := legacy.ParseName(template)
	expect.NoError(t, err)
	spec := request.Template("ns").Spec
	return &resourceapi.ResourceClaim{ObjectMeta: spec.ObjectMeta, Spec: spec.Spec}
}

// granted is what a claim gets of a node, nothing if it does not fit, in the time that the scheduler takes.
func granted(t *testing.T, n *allocatortest.Node,
	asked resourceapi.DeviceClaim) []resourceapi.DeviceRequestAllocationResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), mostPerNode)
	defer cancel()
	results, err := n.Allocate(ctx, asked)
	expect.NoError(t, err)
	return results
}

// allocate returns "REQUEST DEVICE MEMORY CORES" of what a template's claim gets, in
// order; "" if it does not fit. counted reports whether a ResourceQuota counts it.
func allocate(t *testing.T, n *allocatortest.Node, template string, counted bool) string {
	t.Helper()
	asked := claimOf(t, template).Spec.Devices
	checkSelectors(t, asked)
	if counted {
		asked.Requests = quota.Counted(asked.Requests)
	}
	var got []string
	for _, r := range granted(t, n, asked) {
		name, isCounted := strings.CutSuffix(r.Request, "/share")
		if _, isShare := r.ConsumedCapacity[v1alpha1.CapMemory]; isCounted != (counted && isShare) {
			t.Errorf("the result's request is %q", r.Request)
		}
		text := name + " " + r.Device
		if memory, ok := r.ConsumedCapacity[v1alpha1.CapMemory]; ok {
			text += fmt.Sprintf(" %dGi", memory.Value()/devices.GiB)
		}
		if cores := r.ConsumedCapacity[v1alpha1.CapCores]; !cores.IsZero() {
			text += fmt.Sprintf(" %d%%", cores.Value())
		}
		got = append(got, text)
	}
	return strings.Join(got, ", ")
}

// checkSelectors checks that the API server takes the selectors of a claim: it refuses those that may cost too much.
func checkSelectors(t *testing.T, asked resourceapi.DeviceClaim) {
	t.Helper()
	for _, request := range asked.Requests {
		if request.Exactly == nil {
			continue
		}
		for _, s := range request.Exactly.Selectors {
			if cost := stockallocator.Cost(s.CEL.Expression); cost == 0 || cost > resourceapi.CELSelectorExpressionMaxCost {
				t.Errorf("the selector costs %d: %s", cost, s.CEL.Expression)
			}
		}
	}
}

func TestWhatRequestsAreGiven(t *testing.T) {
	type step struct{ template, want string }
	for name, test := range map[string]struct {
		mode      mode.Mode
		isolation string
		steps     []step
	}{
		"memory in mode share": {mode.Share, "none", []step{
			{"gpushare.mem.main.3", "main gpu-0-share 3Gi"},
			{"gpushare.mem.a.6.b.7", "a gpu-1-share 6Gi, b gpu-1-share 7Gi"}, // 12 are left on the first GPU
			{"gpushare.mem.a.12", "a gpu-0-share 12Gi"},
			{"gpushare.mem.a.16", ""}, // never split
			{"gpushare.mem-x4.main.8", ""},
			{"gpushare.mem-x2.main.8", "main gpu-2-share 4Gi, main gpu-3-share 4Gi"},
			{"gpushare.core.main.3-20", ""},
			{"gpushare.gpu.main.1", ""},
		}},
		"four GPUs": {mode.Share, "none",
			[]step{{"gpushare.mem-x4.main.8", "main gpu-0-share 2Gi, main gpu-1-share 2Gi, main gpu-2-share 2Gi, main " +
				"gpu-3-share 2Gi"}}},
		"GPUs of several containers": {mode.Share, "none", []step{
			{"gpushare.mem.first.12", "first gpu-0-share 12Gi"},
			// Either container would fit on the first GPU, both do not.
			{"gpushare.mem-x2.a.4.b.6", "a-card0 gpu-1-share 2Gi, b-card0 gpu-1-share 3Gi, a-card1 gpu-2-share 2Gi, b-card1 " +
				"gpu-2-share 3Gi"},
			{"gpushare.mem-x2-whole.a.10.b.20", ""},
			{"gpushare.mem-x4.a.4.b.8", "a-card0 gpu-3-share 1Gi, b-card0 gpu-3-share 2Gi, a-card1 gpu-2-share 1Gi, b-card1 " +
				"gpu-2-share 2Gi," +
				" a-card2 gpu-1-share 1Gi, b-card2 gpu-1-share 2Gi, a-card3 gpu-0-share 1Gi, b-card3 gpu-0-share 2Gi"},
			{"gpushare.mem-x4.a.4.b.8", ""},
		}},
		"memory in mode cgpu": {mode.CGPU, "cgpu",
			[]step{{"gpushare.mem.main.3", "main gpu-0-cgpu 3Gi"},
				{"gpushare.mem-x2.main.4", "main gpu-0-cgpu 2Gi, main gpu-1-cgpu 2Gi"}}},
		"memory in mode mps": {mode.MPS, "mps", []step{{"gpushare.mem.main.3", "main gpu-0-mps 3Gi"}, {
			"gpushare.mem-x2.main.4", ""}}},
		"memory and whole GPUs": {mode.Exclusive, "none", []step{{"gpushare.mem.main.3", ""}}},
		"memory and compute": {mode.CoreMem, "mps", []step{
			{"gpushare.mem.main.3", ""}, // never on such a node
			{"gpushare.core.main.3-20", "main gpu-0-core-mem 3Gi 20%"},
			{"gpushare.core.a.1-50.b.1-50", "a gpu-1-core-mem 1Gi 50%, b gpu-1-core-mem 1Gi 50%"},
			{"gpushare.core-x2.main.4-20", ""},
		}},
		"a whole GPU": {mode.Share, "none", []step{
			{"gpushare.mem.main.1", "main gpu-0-share 1Gi"},
			{"gpushare.mem-whole.main.14", ""}, // less than a GPU's
			{"gpushare.mem-whole.a.8.b.7", "a gpu-1-share 8Gi, b gpu-1-share 7Gi"},
			{"gpushare.mem-x2-whole.main.30", "main gpu-2-share 15Gi, main gpu-3-share 15Gi"},
			{"gpushare.mem-whole.main.15", ""},
		}},
		// The first mode that the node lists.
		"on a dynamic node": {mode.Dynamic, "none", []step{
			{"gpushare.mem.a.8.b.7", "a gpu-0-share 8Gi, b gpu-0-share 7Gi"},
			{"gpushare.core.main.3-20", "main gpu-1-core-mem 3Gi 20%"},
			{"gpushare.mem-x2.main.4", "main gpu-2-share 2Gi, main gpu-3-share 2Gi"},
		}},
		"of a model": {mode.CGPU, "cgpu", []step{
			{"gpushare.mem-on--cgpu--model-a100--model-v100.main.3", "main gpu-0-cgpu 3Gi"},
			{"gpushare.mem-on--model-nvidia-tesla-v100-sxm2-16gb.main.3", "main gpu-0-cgpu 3Gi"},
			{"gpushare.mem-on--model-a100.main.3", ""},
			{"gpushare.mem-on--nomodel-sxm2.main.3", ""},
			{"gpushare.mem-on--nomodel-a100--nomodel-t4.main.3", "main gpu-0-cgpu 3Gi"},
			{"gpushare.mem-on--mps.main.3", ""},
		}},
		"of these UUIDs": {mode.Dynamic, "cgpu", []step{
			{"gpushare.mem-x2-on--cgpu--uuid-gpu-3--uuid-gpu-1.main.4", "main gpu-1-cgpu 2Gi, main gpu-3-cgpu 2Gi"},
			{"gpushare.mem-on--cgpu--nouuid-gpu-1--nouuid-gpu-0.main.4", "main gpu-2-cgpu 4Gi"},
			{"gpushare.core-on--uuid-gpu-0.main.4-20", "main gpu-0-core-mem 4Gi 20%"},
			{"gpushare.core-on--uuid-gpu-1.main.4-20", ""}, // in mode cgpu
		}},
		"whole GPUs of these UUIDs": {mode.Exclusive, "whole-card", []step{
			{"gpushare.nvidia-on--model-v100--nouuid-gpu-0.a.1.b.2", "b gpu-1, b gpu-2, a gpu-3"},
		}},
		"cards": {mode.Topology, "whole-card", []step{
			{"gpushare.gpu.main.2", "main/linked gpus-0-3"},
			{"gpushare.gpu.main.3", "main gpu-1-topology, main gpu-2-topology, main gpu-4-topology"},
			{"gpushare.gpu.a.1.b.1", "a gpu-5-topology, b gpu-6-topology"},
			{"gpushare.gpu.main.2", ""},
			{"gpushare.mem.main.3", ""},
		}},
	} {
		// A quota of GiB changes nothing of what is given.
		for _, counted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, counted: %t", name, counted), func(t *testing.T) {
				n := node(t, test.mode, test.isolation)
				for _, step := range test.steps {
					expect.Equal(t, step.want, allocate(t, n, step.template, counted), "%s", step.template)
				}
			})
		}
	}
}

// A dynamic node gives memory alone in mode share. GPUs that others have in another mode are passed over.
func TestGPUsOfOneModeOnADynamicNode(t *testing.T) {
	for name, test := range map[string]struct {
		held           []string
		template, want string
	}{
		"beside other modes": {[]string{"cgpu", "share"}, "gpushare.mem-x2.main.4",
			"main gpu-1-share 2Gi, main gpu-2-share 2Gi"},
		"too few are left": {[]string{"cgpu", "share"}, "gpushare.mem-x4.main.8", ""},
		"one GPU":          {[]string{"cgpu", "share"}, "gpushare.mem.main.4", "main gpu-1-share 4Gi"},
		"none is left":     {[]string{"cgpu", "cgpu", "mps", "mps"}, "gpushare.mem.main.4", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeOf(t, 4, mode.Dynamic, "none")
			for i, class := range test.held {
				request := resourceapi.ExactDeviceRequest{DeviceClassName: class + "." + v1alpha1.DriverName,
					AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
					Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
						`device.attributes[%q].%s == %d`, v1alpha1.DriverName, v1alpha1.AttrIndex, i)}}}}
				if got := n.Devices(t, resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r",
					Exactly: &request}}}); got != fmt.Sprintf("gpu-%d-%s", i, class) {
					t.Fatalf("class %s got %q", class, got)
				}
			}
			expect.Equal(t, test.want, allocate(t, n, test.template, false), "%s", test.template)
		})
	}
}

// That several containers do not fit on several GPUs is found out without a try of each
// assignment of GPUs to requests: all other pods wait meanwhile.
func TestContainersThatDoNotFitOnManyGPUs(t *testing.T) {
	for name, test := range map[string]struct {
		mode           mode.Mode
		gpus           int
		held, template string
	}{
		"eight GPUs":         {mode.Share, 8, "mem.o.1", "gpushare.mem-x8.a.56.b.64"},
		"four containers":    {mode.Share, 8, "mem.o.1", "gpushare.mem-x8.a.8.b.8.c.40.d.64"},
		"five of eight":      {mode.Share, 8, "mem-x4.o.60", "gpushare.mem-x5.a.35.b.40"},
		"sixteen GPUs":       {mode.Share, 16, "mem.o.15", "gpushare.mem-x16.a.112.b.128"},
		"memory and compute": {mode.CoreMem, 16, "core.o.1-5", "gpushare.core-x16.a.112-160.b.112-1440"},
		"a dynamic node":     {mode.Dynamic, 8, "mem.o.1", "gpushare.mem-x8.a.56.b.64"},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeOf(t, test.gpus, test.mode, "none")
			if got := allocate(t, n, "gpushare."+test.held, false); got == "" {
				t.Fatalf("%s does not fit", test.held)
			}
			expect.Equal(t, "", allocate(t, n, test.template, false), "%s", test.template)
		})
	}
}

// Combined the containers may ask for what one claim can hold.
func TestSixteenGPUsOfTwoContainers(t *testing.T) {
	devices := claimOf(t, "gpushare.mem-x16.a.16.b.16").Spec.Devices
	if len(devices.Requests) != resourceapi.DeviceRequestsMaxSize ||
		len(devices.Constraints) > resourceapi.DeviceConstraintsMaxSize ||
		len(devices.Config) > resourceapi.DeviceConfigMaxSize {
		t.Errorf("%d requests, %d constraints, %d configurations", len(devices.Requests), len(devices.Constraints),
			len(devices.Config))
	}
}

func TestTemplatesAndClaimsAreMarked(t *testing.T) {
	request, err := legacy.ParseName("gpushare.mem.main.3")
	expect.NoError(t, err)
	template := request.Template("ns")
	if template.Namespace != "ns" || template.Name != "gpushare.mem.main.3" ||
		template.Labels[v1alpha1.LabelLegacy] != "true" || template.Spec.Labels[v1alpha1.LabelLegacy] != "true" {
		t.Errorf("template %+v, its claims %+v", template.ObjectMeta, template.Spec.ObjectMeta)
	}
}

// A claim for several GPUs that a quota counts leaves those with MPS out, and another one
// would not.
func TestCountedClaimsThatWouldTakeMPS(t *testing.T) {
	for template, is := range map[string]bool{"gpushare.mem-x2.main.4": true, "gpushare.mem.main.4": false} {
		claim := claimOf(t, template)
		claim.Spec.Devices.Requests = quota.Counted(claim.Spec.Devices.Requests)
		other, got := legacy.AlsoMPS(claim)
		if got != is || is && len(other.Spec.Devices.Requests[0].FirstAvailable[0].Selectors) != 0 {
			t.Errorf("%s: %t, want %t; it asks for %+v", template, got, is, other.Spec.Devices.Requests[0])
		}
	}
}
