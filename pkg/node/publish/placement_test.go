// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// pods is a node whose claims come and go one after the other: each is allocated
// by the scheduler's allocator from what is published, and prepared.
type pods struct {
	*bench
	node *allocatortest.Node
	// allocated are the results of the records, in their order.
	allocated [][]resourceapi.DeviceRequestAllocationResult
}

// newPods returns a node with GPUs of 15 units, all of them supervised by MPS.
func newPods(t *testing.T, gpus int, labels map[string]string) *pods {
	t.Helper()
	p := &pods{bench: supervised(t)}
	m := &gpu.Machine{}
	for i := range gpus {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), MemoryMiB: 16130})
		p.daemon(t, i, mps.Ready)
	}
	p.SetMachine(m)
	p.label(labels)
	p.publish(t)
	return p
}

func (p *pods) daemon(t *testing.T, g int, s mps.State) {
	t.Helper()
	expect.NoError(t, p.mps.SetStatus(fmt.Sprintf("GPU-%d", g), mps.Status{State: s}))
}

// publish lets the publisher look at what is granted.
func (p *pods) publish(t *testing.T) {
	t.Helper()
	p.pass(t)
	classes, err := deviceclasses.Modes()
	expect.NoError(t, err)
	published := p.published[len(p.published)-1]
	if p.node == nil {
		p.node = allocatortest.NewNode("n1", "gpu.aliyun.com", published, classes)
	}
	p.node.Publish(published)
}

// run allocates a claim, and returns the index of its GPU, -1 if it finds none.
func (p *pods) run(t *testing.T, m mode.Mode, memory, cores string) int {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: string(m) + ".gpu.aliyun.com",
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if m.Shared() {
		request.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory), "cores": resource.MustParse(cores),
		}}
	}
	results, err := p.node.Allocate(ctx, resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu",
		Exactly: request}}})
	expect.NoError(t, err)
	if len(results) == 0 {
		return -1
	}
	grants, err := claim.Grants(&resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}},
	}}, "n1/gpu", p.inputs().machine)
	expect.NoError(t, err)
	p.allocated = append(p.allocated, results)
	p.records = append(p.records, state.Record{Grants: grants})
	p.publish(t)
	return grants[0].GPU.Index
}

// end lets the claim that came as number i end.
func (p *pods) end(t *testing.T, i int) {
	t.Helper()
	p.node.Release(p.allocated[i])
	p.records[i] = state.Record{}
	p.publish(t)
}

// asked is what a row of claims asks for.
type asked struct {
	mode          mode.Mode
	memory, cores string
	times         int
}

func TestSpreadGoesRoundTheGPUsThatTakeClaims(t *testing.T) {
	for name, test := range map[string]struct {
		schedule string
		down     bool // the MPS daemon of GPU 0
		maxPod   string
		asked    []asked
		want     []int
	}{
		"all GPUs":     {"share", false, "", []asked{{mode.Share, "3Gi", "0", 8}}, []int{0, 1, 2, 3, 0, 1, 2, 3}},
		"a GPU closed": {"mps", true, "", []asked{{mode.MPS, "3Gi", "0", 8}}, []int{1, 2, 3, 1, 2, 3, 1, 2}},
		"no compute left": {"core_mem", false, "", []asked{{mode.CoreMem, "1Gi", "100", 1}, {mode.CoreMem, "2Gi", "15", 10}},
			[]int{0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1}},
		"too little of it": {"core_mem", false, "", []asked{{mode.CoreMem, "1Gi", "90", 1}, {mode.CoreMem, "2Gi", "15", 10}},
			[]int{0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1}},
		"no slots left": {"share", false, "2", []asked{{mode.Share, "9Gi", "0", 3}, {mode.Share, "1Gi", "0", 6}},
			[]int{0, 1, 2, 3, 3, 0, 1, 2, -1}},
		"of several modes": {"dynamic", false, "", []asked{{mode.Exclusive, "", "", 1}, {mode.Share, "1Gi", "0", 1}, {
			mode.MPS, "2Gi", "0", 5}}, []int{0, 1, 2, 3, 2, 3, 2}},
		"closed in a mode": {"dynamic", true, "", []asked{{mode.Share, "1Gi", "0", 1}, {mode.MPS, "2Gi", "0", 5}},
			[]int{0, 1, 2, 3, 1, 2}},
		"whole GPUs alone": {"dynamic", false, "", []asked{{mode.Exclusive, "", "", 5}}, []int{0, 1, 2, 3, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			labels := map[string]string{ack.NodeLabelSchedule: test.schedule, ack.NodeLabelPlacement: "spread"}
			if test.maxPod != "" {
				labels[ack.NodeLabelMaxPod] = test.maxPod
			}
			p := newPods(t, 4, labels)
			if test.down {
				p.daemon(t, 0, mps.Down)
				p.publish(t)
			}
			var got []int
			for _, a := range test.asked {
				for range a.times {
					got = append(got, p.run(t, a.mode, a.memory, a.cores))
				}
			}
			expect.Equal(t, test.want, got, "GPUs of the claims")
		})
	}
}

// A GPU that takes claims again is where the next ones go.
func TestSpreadReturnsToAGPUThatIsOpenAgain(t *testing.T) {
	p := newPods(t, 3, map[string]string{ack.NodeLabelSchedule: "mps", ack.NodeLabelPlacement: "spread"})
	p.daemon(t, 0, mps.Down)
	p.publish(t)
	got := []int{p.run(t, mode.MPS, "3Gi", "0")}
	p.daemon(t, 0, mps.Ready)
	p.publish(t)
	for range 4 {
		got = append(got, p.run(t, mode.MPS, "3Gi", "0"))
	}
	expect.Equal(t, []int{1, 0, 2, 0, 1}, got, "GPUs of the claims")
}

// A GPU that is sick takes no claims, so that nobody waits until it has caught up.
func TestSpreadDoesNotWaitForASickGPU(t *testing.T) {
	p := newPods(t, 3, map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "spread"})
	p.SetHealth(map[string]health.Unhealthy{"GPU-0": {Reason: "xid-79"}})
	p.publish(t)
	var got []int
	for range 5 {
		got = append(got, p.run(t, mode.Share, "3Gi", "0"))
	}
	expect.Equal(t, []int{1, 2, 1, 2, 1}, got, "GPUs of the claims")
}

// Each write makes the scheduler look at all waiting pods of the cluster again.
func TestOrderIsPublishedOnlyWhenItMatters(t *testing.T) {
	writes := func(t *testing.T, p *pods, want int, what string, f func()) {
		t.Helper()
		before := len(p.published)
		f()
		expect.Equal(t, want, len(p.published)-before, "%s: times published", what)
	}
	t.Run("spread", func(t *testing.T) {
		p := newPods(t, 4, map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "spread"})
		writes(t, p, 1, "once round the GPUs", func() {
			for range 4 {
				p.run(t, mode.Share, "3Gi", "0")
			}
		})
		writes(t, p, 1, "GPU 2 has least", func() { p.end(t, 2) })
		writes(t, p, 1, "and GPU 3", func() { p.end(t, 3) })
		writes(t, p, 1, "GPU 2 takes another one that keeps it even", func() { p.run(t, mode.Share, "1Gi", "0") })
	})
	t.Run("a claim that fills the first GPU", func(t *testing.T) {
		p := newPods(t, 2, map[string]string{ack.NodeLabelSchedule: "core_mem", ack.NodeLabelPlacement: "spread"})
		writes(t, p, 0, "the second GPU is next as it is", func() { p.run(t, mode.CoreMem, "1Gi", "100") })
	})
	t.Run("dynamic", func(t *testing.T) {
		p := newPods(t, 3, map[string]string{ack.NodeLabelSchedule: "dynamic"})
		writes(t, p, 0, "GPUs are taken in the order they have", func() {
			p.run(t, mode.Exclusive, "", "")
			p.run(t, mode.Share, "3Gi", "0")
			p.run(t, mode.MPS, "3Gi", "0")
		})
		writes(t, p, 1, "GPU 0 is free and stands before those in use", func() { p.end(t, 0) })
		writes(t, p, 1, "GPU 1 is free and stands before GPU 2", func() { p.end(t, 1) })
		writes(t, p, 1, "nothing is in use", func() { p.end(t, 2) })
		writes(t, p, 0, "the first GPU is taken", func() {
			expect.Equal(t, 0, p.run(t, mode.Share, "3Gi", "0"), "GPU of the claim")
		})
		writes(t, p, 0, "a free GPU stands before one that takes no claim", func() {
			p.run(t, mode.Exclusive, "", "")
			p.run(t, mode.Exclusive, "", "")
			p.end(t, 4)
		})
	})
}

// The scheduler counts by names: what claims hold of a GPU that is gone, or has another index now, it counts on the GPU
// that has the name now. Nobody waits for that one to catch up, and it takes as much as the scheduler lets it.
func TestSpreadOntoAGPUThatHasTheNameOfAHeldOne(t *testing.T) {
	for name, test := range map[string]struct {
		schedule, maxPod string
		// held are claims of GPU 1. Then a GPU is gone: GPU 1 or, where that shifts, GPU 0. GPU 2 is GPU 1 after that.
		held   asked
		shifts bool
		asked  asked
		want   []int
	}{
		"by one claim": {"share", "", asked{mode.Share, "10Gi", "0", 1}, false, asked{mode.Share, "3Gi", "0", 7},
			[]int{0, 1, 0, 0, 0, 0, -1}},
		"of a GPU that shifts": {"share", "", asked{mode.Share, "10Gi", "0", 1}, true, asked{mode.Share, "3Gi", "0", 2},
			[]int{1, -1}},
		"by many small ones": {"share", "", asked{mode.Share, "1Gi", "0", 14}, false, asked{mode.Share, "1Gi", "0", 6},
			[]int{0, 1, 0, 0, 0, 0}},
		"too little is left": {"share", "", asked{mode.Share, "1Gi", "0", 10}, false, asked{mode.Share, "6Gi", "0", 3},
			[]int{0, 0, -1}},
		"all slots": {"share", "5", asked{mode.Share, "1Gi", "0", 5}, false, asked{mode.Share, "3Gi", "0", 6},
			[]int{0, 0, 0, 0, 0, -1}},
		"all its compute": {"core_mem", "", asked{mode.CoreMem, "1Gi", "25", 4}, false,
			asked{mode.CoreMem, "3Gi", "20", 6}, []int{0, 0, 0, 0, 0, -1}},
		"in another mode": {"dynamic", "", asked{mode.MPS, "1Gi", "0", 1}, false, asked{mode.Share, "3Gi", "0", 6},
			[]int{0, 0, 0, 0, 0, -1}},
		"as a whole": {"dynamic", "", asked{mode.Exclusive, "", "", 1}, false, asked{mode.Share, "3Gi", "0", 6},
			[]int{0, 0, 0, 0, 0, -1}},
	} {
		t.Run(name, func(t *testing.T) {
			labels := map[string]string{ack.NodeLabelSchedule: test.schedule}
			if test.maxPod != "" {
				labels[ack.NodeLabelMaxPod] = test.maxPod
			}
			p := newPods(t, 3, labels)
			gpus := p.inputs().machine.GPUs
			p.SetHealth(map[string]health.Unhealthy{"GPU-0": {Reason: "xid-79"}, "GPU-2": {Reason: "xid-79"}})
			p.publish(t)
			for range test.held.times {
				if got := p.run(t, test.held.mode, test.held.memory, test.held.cores); got != 1 {
					t.Fatalf("a claim got GPU %d before", got)
				}
			}
			left := []gpu.GPU{gpus[0], gpus[2]}
			if test.shifts {
				left = []gpu.GPU{gpus[1], gpus[2]}
			}
			left[0].Index, left[1].Index = 0, 1
			p.SetMachine(&gpu.Machine{GPUs: left})
			p.SetHealth(nil)
			labels[ack.NodeLabelPlacement] = "spread"
			p.label(labels)
			p.publish(t)
			var got []int
			for range test.asked.times {
				got = append(got, p.run(t, test.asked.mode, test.asked.memory, test.asked.cores))
			}
			expect.Equal(t, test.want, got, "GPUs of the claims")
		})
	}
}

// told has the node say who waits.
func (b *bench) told(t *testing.T, text string) {
	t.Helper()
	b.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        "n1",
		Labels:      map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "spread"},
		Annotations: map[string]string{v1alpha1.AnnotationWaiting: text},
	}})
}

// offers checks how many GiB and shares claims can have of each GPU together, and whether the
// publisher has to look again.
func (b *bench) offers(t *testing.T, when string, again bool, want map[string]gpu.Amount) {
	t.Helper()
	expect.Equal(t, again, !b.pass(t), "%s: looks again", when)
	got := map[string]gpu.Amount{}
	for _, d := range b.last(t) {
		memory, slots := d.Capacity[v1alpha1.CapMemory].Value, d.Capacity[v1alpha1.CapSlots].Value
		got[d.Name] = gpu.Amount{Units: memory.Value() >> 30, Shares: slots.Value()}
		units, shares := d.Attributes[v1alpha1.AttrShareableGiB].IntValue, d.Attributes[v1alpha1.AttrMaxShares].IntValue
		if units == nil || *units != 15 || shares == nil || *shares != 20 {
			t.Errorf("%s: device %s has attributes %v", when, d.Name, d.Attributes)
		}
	}
	expect.Equal(t, want, got, "%s: offered", when)
}

func TestWhatIsHeldBackIsOfferedToWhoWaits(t *testing.T) {
	of := func(units, shares int64) gpu.Amount { return gpu.Amount{Units: units, Shares: shares} }
	both := func(first, second gpu.Amount) map[string]gpu.Amount {
		return map[string]gpu.Amount{"gpu-0-share": first, "gpu-1-share": second}
	}
	even := both(of(4, 1), of(15, 1))
	b := newBench(t)
	waiting := func(gib, shares int64, apart time.Duration) string {
		text, err := placement.Waiting{Claim: "waits", At: b.clock.Now().Add(apart), GiB: gib, Shares: shares}.Encode()
		expect.NoError(t, err)
		return text
	}
	grant := func(name string, index int, units int64) {
		b.records = append(b.records, recordOf(name, shareOf(index, units)))
	}
	b.told(t, waiting(3, 1, 0))
	grant("first", 0, 4)
	b.offers(t, "told before the plugin started", false, even)
	b.told(t, "")
	b.offers(t, "one GPU ahead", false, even)
	b.clock.Step(10 * time.Second)
	b.told(t, "not understood")
	b.offers(t, "told nonsense", false, even)
	b.told(t, waiting(3, 1, 0))
	b.offers(t, "the first that waits has a turn in the round", true, even)
	b.clock.Step(5 * time.Second)
	b.told(t, "")
	b.offers(t, "it waits no more", false, even)
	// Whatever the clock of the controller says.
	for i, apart := range []time.Duration{0, 2 * time.Minute, -2 * time.Minute, 24 * time.Hour, -24 * time.Hour} {
		b.told(t, waiting(3, 1, apart))
		b.offers(t, "somebody waits, its clock apart by "+apart.String(), true, both(of(15, 1+1<<i), of(15, 1+1<<i)))
		b.clock.Step(5 * time.Second)
		b.told(t, "")
		b.offers(t, "nobody waits any more", false, even)
	}

	b.told(t, waiting(3, 1, 0))
	b.offers(t, "somebody waits again", true, both(of(15, 20), of(15, 20)))
	grant("another", 1, 4)
	b.offers(t, "a claim came", true, both(of(15, 2), of(15, 2)))
	b.clock.Step(4 * time.Second)
	b.told(t, waiting(3, 1, 0))
	b.offers(t, "the round of the GPUs goes on", true, both(of(15, 2), of(15, 2)))
	b.clock.Step(time.Second)
	b.offers(t, "it does not", true, both(of(15, 3), of(15, 3)))

	b.told(t, waiting(6, 2, 0))
	grant("third", 0, 4)
	b.offers(t, "two shares of one GPU, at once", true, both(of(10, 4), of(10, 3)))
	b.clock.Step(10 * time.Second)
	b.told(t, "")
	b.offers(t, "told of it no more", false, both(of(8, 2), of(15, 2)))
}
