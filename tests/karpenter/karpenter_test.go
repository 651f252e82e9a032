// SPDX-License-Identifier: Apache-2.0

// Package karpenter tests what docs/autoscaling.md says of Karpenter with the code of its core: its allocator, and its
// rule for nodes that are initialized.
package karpenter

import (
	"fmt"
	"testing"
	"unique"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/scheduling/dynamicresources"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// node is one that Karpenter may place pods on; it does not exist yet where name is empty.
type node struct{ name string }

var _ dynamicresources.NodeClaim = node{}

func (n node) ID() dynamicresources.NodeClaimID        { return unique.Make("claim-" + n.name) }
func (n node) NodeName() string                        { return n.name }
func (n node) NodePoolID() dynamicresources.NodePoolID { return unique.Make("pool") }
func (n node) Requirements() scheduling.Requirements   { return scheduling.NewRequirements() }
func (n node) InstanceTypes() []dynamicresources.InstanceTypeID {
	return []dynamicresources.InstanceTypeID{unique.Make("gpu.large")}
}

// ResourceSlices are those that the provider knows of new nodes: none of this driver.
func (n node) ResourceSlices() map[dynamicresources.InstanceTypeID][]dynamicresources.ResourceSlice {
	return nil
}

// published are the slices of a node with two GPUs of 23 GiB, or four that are linked in pairs, as the API server has
// them.
func published(m mode.Mode) []*resourceapi.ResourceSlice {
	machine := &gpu.Machine{}
	for i := range 4 {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprint("GPU-", i), Model: "NVIDIA-A10",
			MemoryMiB: 23028})
	}
	if m != mode.Topology {
		machine.GPUs = machine.GPUs[:2]
	}
	for _, pair := range [][2]int{{0, 2}, {1, 3}} {
		machine.Links = append(machine.Links, gpu.Link{A: pair[0], B: pair[1], Kind: gpu.LinkNVLink, GBps: 50})
	}
	pool := devices.Build(machine, devices.Options{Pool: v1alpha1.PoolName("n1"), Mode: m, Slots: 20,
		Isolation: "none", IsolationLevel: "none"}).Pools[v1alpha1.PoolName("n1")]
	var out []*resourceapi.ResourceSlice
	for i, slice := range pool.Slices {
		out = append(out, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n1-", i),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "n1", UID: "u"}}},
			Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: ptr.To("n1"),
				Pool: resourceapi.ResourcePool{Name: v1alpha1.PoolName("n1"), Generation: 1,
					ResourceSliceCount: int64(len(pool.Slices))},
				Devices: slice.Devices, SharedCounters: slice.SharedCounters}})
	}
	return out
}

// asking is a claim for one device of a class, with GiB of memory where that is not 0.
func asking(name, class string, memory int64) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: 1,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if memory > 0 {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: *resource.NewQuantity(memory*devices.GiB, resource.BinarySI)}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}}}}
}

// Karpenter's simulation places claims on nodes that are there, as the scheduler does, so consolidation counts their
// GPUs; on a node that is not there yet it places none.
func TestClaimsOnNodesOfKarpenter(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	classes, err := deviceclasses.All()
	if err != nil {
		t.Fatal(err)
	}
	reader := fake.NewClientBuilder().WithScheme(scheme)
	for _, class := range classes {
		reader = reader.WithObjects(class)
	}
	client := reader.Build()
	for name, test := range map[string]struct {
		mode   mode.Mode
		on     node
		claims []*resourceapi.ResourceClaim
		// fits is how many of the claims find room, one after the other.
		fits int
	}{
		"shares of two GPUs": {mode.Share, node{"n1"}, []*resourceapi.ResourceClaim{asking("a", "share.gpu.aliyun.com", 15),
			asking("b", "share.gpu.aliyun.com", 7), asking("c", "share.gpu.aliyun.com", 20),
			asking("d", "share.gpu.aliyun.com", 3)}, 3},
		"whole GPUs": {mode.Exclusive, node{"n1"}, []*resourceapi.ResourceClaim{asking("a", "exclusive.gpu.aliyun.com", 0),
			asking("b", "exclusive.gpu.aliyun.com", 0), asking("c", "exclusive.gpu.aliyun.com", 0)}, 2},
		"linked sets": {mode.Topology, node{"n1"}, []*resourceapi.ResourceClaim{
			asking("a", "linked-2.topology.gpu.aliyun.com", 0), asking("b", "single.topology.gpu.aliyun.com", 0),
			asking("c", "linked-2.topology.gpu.aliyun.com", 0)}, 2},
		"another node": {mode.Share, node{"n2"}, []*resourceapi.ResourceClaim{asking("a", "share.gpu.aliyun.com", 1)}, 0},
		"a new node":   {mode.Share, node{}, []*resourceapi.ResourceClaim{asking("a", "share.gpu.aliyun.com", 1)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var slices []dynamicresources.ResourceSlice
			for _, slice := range published(test.mode) {
				slices = append(slices, dynamicresources.NewAPIServerSlice(slice))
			}
			allocator := dynamicresources.NewAllocator(slices, dynamicresources.AllocatedDeviceState{}, nil, client, nil)
			fits := 0
			for _, claim := range test.claims {
				result, err := allocator.Allocate(t.Context(), test.on, []*resourceapi.ResourceClaim{claim})
				if err != nil {
					break
				}
				result.Allocation.Commit(t.Context())
				fits++
			}
			if fits != test.fits {
				t.Errorf("%d of the claims find room, want %d", fits, test.fits)
			}
		})
	}
}

// A NodeClaim that waits for the driver is initialized once its pool is complete, also one without devices.
func TestNodeClaimsThatWaitForTheDriver(t *testing.T) {
	claim := &karpenterv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"karpenter.sh/requested-dra-drivers": "gpu.aliyun.com"}}}
	complete := func(of []*resourceapi.ResourceSlice) bool {
		var all []resourceapi.ResourceSlice
		for _, slice := range of {
			all = append(all, *slice)
		}
		_, is := lifecycle.DRADriversPublished(claim, all)
		return is
	}
	linked := published(mode.Topology)
	if len(linked) < 2 {
		t.Fatalf("a node with linked GPUs has %d slices, want several", len(linked))
	}
	if complete(nil) || complete(linked[:1]) {
		t.Error("a node without all slices of its pool counts as initialized")
	}
	if !complete(linked) || !complete(published(mode.Share)) {
		t.Error("a node with all slices of its pool does not count as initialized")
	}
	empty := published(mode.Share)
	empty[0].Spec.Devices = nil
	if !complete(empty) {
		t.Error("a node with an empty pool does not count as initialized")
	}
}
