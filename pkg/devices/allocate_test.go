// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// node publishes four GPUs of 16130 MiB. The scheduler knows the classes of the modes,
// and more.
func node(t *testing.T, m mode.Mode, slots int64, more ...*resourceapi.DeviceClass) *allocatortest.Node {
	t.Helper()
	return allocatortest.NewNode("n1", v1alpha1.DriverName,
		devices.Build(plainGPUs(4), devices.Options{Pool: "n1/gpu", Mode: m, Slots: slots, Isolation: "none"}),
		append(modeClasses(t), more...))
}

func modeClasses(t testing.TB) []*resourceapi.DeviceClass {
	t.Helper()
	classes, err := deviceclasses.Modes()
	expect.NoError(t, err)
	return classes
}

type amounts map[resourceapi.QualifiedName]string

// request asks for one device of a mode's class with these amounts.
func request(name string, m mode.Mode, a amounts) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: string(m) + ".gpu.aliyun.com",
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if a != nil {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for capacity, amount := range a {
			exactly.Capacity.Requests[capacity] = resource.MustParse(amount)
		}
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exactly}
}

func claimOf(requests ...resourceapi.DeviceRequest) resourceapi.DeviceClaim {
	return resourceapi.DeviceClaim{Requests: requests}
}

// With many slots, a claim for little memory would close a GPU to all others, within
// every quota that counts devices and every bound on their memory, and by whatever
// class. So nobody is given more than one.
func TestAShareTakesOneSlot(t *testing.T) {
	own := &resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.aliyun.com"`,
		}}}}}
	own.Name = "own"
	n := node(t, mode.Share, 20, own)
	for class, slots := range map[string]string{"share.gpu.aliyun.com": "20", "own": "2"} {
		asked := request("r", mode.Share, amounts{"memory": "1Gi", "slots": slots})
		asked.Exactly.DeviceClassName = class
		expect.Equal(t, "", n.Devices(t, claimOf(asked)), "%s slots by class %s: allocated", slots, class)
	}
	one := claimOf(request("r", mode.Share, amounts{"memory": "1Gi", "slots": "1"}))
	expect.Equal(t, "gpu-0-share", n.Devices(t, one), "one slot: allocated")
}

// The published sample of ACK's binpack: eight pods of 3 GiB.
func TestSharesFillAGPUBeforeTheNext(t *testing.T) {
	n := node(t, mode.Share, 20)
	for i := range 8 {
		want := "gpu-0-share"
		if i >= 5 {
			want = "gpu-1-share"
		}
		expect.Equal(t, want, n.Devices(t, claimOf(request("r", mode.Share, amounts{"memory": "3Gi"}))), "claim %d", i)
	}
	expect.Equal(t, "", n.Devices(t, claimOf(request("r", mode.Share, amounts{"memory": "16Gi"}))),
		"16Gi on GPUs of 15 units")
	expect.Equal(t, "gpu-2-share", n.Devices(t, claimOf(request("r", mode.Share, amounts{"memory": "15Gi"}))),
		"a whole GPU's memory")
}

func TestRequestsThatSayNoAmount(t *testing.T) {
	n := node(t, mode.Share, 20)
	_, ctx := ktesting.NewTestContext(t)
	results, err := n.Allocate(ctx, claimOf(request("r", mode.Share, nil)))
	if err != nil || len(results) != 1 {
		t.Fatalf("%v, %v", results, err)
	}
	for capacity, want := range (amounts{"memory": "1Gi", "cores": "0", "slots": "1"}) {
		if got := results[0].ConsumedCapacity[capacity]; got.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%s charged: %s, want %s", capacity, got.String(), want)
		}
	}
}

func TestSlotsBoundTheSharesOfAGPU(t *testing.T) {
	n := node(t, mode.Share, 2)
	var got []string
	for range 9 {
		got = append(got, n.Devices(t, claimOf(request("r", mode.Share, nil))))
	}
	want := "gpu-0-share gpu-0-share gpu-1-share gpu-1-share gpu-2-share gpu-2-share gpu-3-share gpu-3-share "
	expect.Equal(t, want, strings.Join(got, " "), "%q", got)
}

func TestRequestsPinnedToOneGPU(t *testing.T) {
	n := node(t, mode.Share, 20)
	expect.Equal(t, "gpu-0-share", n.Devices(t, claimOf(request("r", mode.Share, amounts{"memory": "9Gi"}))), "at first")
	pinned := claimOf(request("a", mode.Share, amounts{"memory": "1Gi"}),
		request("b", mode.Share, amounts{"memory": "7Gi"}))
	pinned.Constraints = []resourceapi.DeviceConstraint{
		{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("gpu.aliyun.com/uuid"))}}
	expect.Equal(t, "gpu-1-share gpu-1-share", n.Devices(t, pinned), "1 + 7 GiB fit together only on the second GPU")
}

func TestAdminClaimFitsOnAFullGPU(t *testing.T) {
	n := node(t, mode.Share, 1)
	for i := range 4 {
		expect.Equal(t, fmt.Sprintf("gpu-%d-share", i),
			n.Devices(t, claimOf(request("r", mode.Share, amounts{"memory": "15Gi"}))), "all of a GPU")
	}
	admin := request("monitor", mode.Share, amounts{"memory": "0", "slots": "0"})
	admin.Exactly.AdminAccess = ptr.To(true)
	admin.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	admin.Exactly.Count = 0
	expect.Equal(t, "gpu-0-share gpu-1-share gpu-2-share gpu-3-share", n.Devices(t, claimOf(admin)), "devices")
}

func TestWholeGPUs(t *testing.T) {
	n := node(t, mode.Exclusive, 0)
	two := request("r", mode.Exclusive, nil)
	two.Exactly.Count = 2
	for _, step := range []struct {
		claim resourceapi.DeviceClaim
		want  string
	}{
		{claimOf(request("r", mode.Exclusive, nil)), "gpu-0"},
		{claimOf(two), "gpu-1 gpu-2"},
		{claimOf(request("r", mode.Share, amounts{"memory": "1Gi"})), ""},
		{claimOf(two), ""},
		{claimOf(request("r", mode.Exclusive, nil)), "gpu-3"},
		{claimOf(request("r", mode.Exclusive, nil)), ""},
	} {
		expect.Equal(t, step.want, n.Devices(t, step.claim), "devices")
	}
}

// Whatever comes and goes, no GPU is granted more than it has.
func TestRandomSharesNeverOverfillAGPU(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := node(t, mode.Share, 6)
	random := rand.New(rand.NewPCG(1, 2))
	var held [][]resourceapi.DeviceRequestAllocationResult
	for range 600 {
		if len(held) > 0 && random.IntN(3) == 0 {
			i := random.IntN(len(held))
			n.Release(held[i])
			held = slices.Delete(held, i, i+1)
			continue
		}
		results, err := n.Allocate(ctx,
			claimOf(request("r", mode.Share, amounts{"memory": fmt.Sprintf("%dGi", 1+random.IntN(9))})))
		expect.NoError(t, err)
		if results != nil {
			held = append(held, results)
		}
		memory, shares := map[string]int64{}, map[string]int{}
		for _, g := range held {
			q := g[0].ConsumedCapacity["memory"]
			memory[g[0].Device] += q.Value() / devices.GiB
			shares[g[0].Device]++
		}
		for device, units := range memory {
			if units > 15 || shares[device] > 6 {
				t.Fatalf("%s holds %d GiB in %d shares", device, units, shares[device])
			}
		}
	}
}
