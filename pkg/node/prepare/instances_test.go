// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// dynamicGPU is a GPU 4 in MIG mode of which instances are made on demand. It outlives the process that cuts it.
type dynamicGPU struct {
	instances []gpu.Instance
	made      int
	// fails are errors of calls, which then have no effect.
	fails map[string]error
	// steps counts what has an effect; the process ends before, or after, the effect of a step: at 2n-1, or 2n.
	steps, killAt int
}

func (d *dynamicGPU) machine() *gpu.Machine {
	m := cut(slices.Clone(d.instances)...)
	gpu.SortInstances(m.Partitioned[0].Instances)
	m.Partitioned[0].Profiles = []gpu.Profile{
		{Kind: at(0, ""), Starts: []int{0, 1, 2, 3, 4, 5, 6}, Count: 7},
		{Kind: gpu.Instance{ProfileID: 9, Profile: "3g.40gb", Size: 4, MemoryMiB: 40192}, Starts: []int{0, 4}, Count: 2},
		{Kind: gpu.Instance{ProfileID: 5, Profile: "4g.40gb", Size: 4, MemoryMiB: 40192}, Starts: []int{0}, Count: 1},
	}
	return m
}

// step does something that a kill can come before, or after. Like a kill, the end of the goroutine unlocks and does
// nothing else.
func (d *dynamicGPU) step(effect func()) {
	d.steps++
	if d.killAt == 2*d.steps-1 {
		runtime.Goexit()
	}
	effect()
	if d.killAt == 2*d.steps {
		runtime.Goexit()
	}
}

func (d *dynamicGPU) Instances(context.Context, string) ([]gpu.Instance, error) {
	return slices.Clone(d.instances), d.fails["instances"]
}

func (d *dynamicGPU) MakeGPUInstance(_ context.Context, _ string, place gpu.Place) (gi int, err error) {
	if err := d.fails["make-gi"]; err != nil {
		return 0, err
	}
	d.step(func() {
		if slices.ContainsFunc(d.instances, func(i gpu.Instance) bool { return i.PlaceOf().Overlaps(place) }) {
			err = gpu.ErrPlaceTaken
			return
		}
		i := at(place.Start, "")
		i.ProfileID, i.Size, i.CI, i.LeftOut = place.ProfileID, place.Size, gpu.NoCI, "it has no compute instance"
		if place.Size == 4 { // as an A100 (facts/mig.md §1.2): two places have one id
			i.GI = map[gpu.Place]int{{ProfileID: 9, Size: 4}: 2, {ProfileID: 9, Start: 4, Size: 4}: 1,
				{ProfileID: 5, Size: 4}: 1}[place]
		}
		d.instances = append(d.instances, i)
		gi = i.GI
	})
	return gi, err
}

func (d *dynamicGPU) MakeComputeInstance(_ context.Context, _ string, gi int) (made gpu.Instance, err error) {
	if err := d.fails["make-ci"]; err != nil {
		return made, err
	}
	d.step(func() {
		at := slices.IndexFunc(d.instances, func(i gpu.Instance) bool { return i.GI == gi })
		d.made++
		d.instances[at].UUID, d.instances[at].CI, d.instances[at].LeftOut = fmt.Sprintf("MIG-made-%d", d.made), 0, ""
		made = d.instances[at]
	})
	return made, nil
}

func (d *dynamicGPU) Destroy(_ context.Context, _ string, gi int) error {
	if err := d.fails["destroy"]; err != nil {
		return err
	}
	is := func(i gpu.Instance) bool { return i.GI == gi }
	d.step(func() {
		if at := slices.IndexFunc(d.instances, is); at >= 0 {
			d.instances[at].UUID, d.instances[at].CI, d.instances[at].LeftOut = "", gpu.NoCI, "it has no compute instance"
		}
	})
	d.step(func() { d.instances = slices.DeleteFunc(d.instances, is) })
	return nil
}

// steppedStore is a store whose writes are steps, too.
type steppedStore struct {
	Store
	*dynamicGPU
}

func (s steppedStore) Put(r state.Record) (err error) {
	s.step(func() { err = s.Store.Put(r) })
	return err
}

func (s steppedStore) Delete(uid types.UID) (err error) {
	s.step(func() { err = s.Store.Delete(uid) })
	return err
}

// cuts has the node's process cut the GPU.
func (n *node) cuts(d *dynamicGPU) {
	n.options.Store = steppedStore{n.options.Store, d}
	n.options.Partitions = d
	n.options.Rescan = func() { n.has(d.machine()) }
	n.has(d.machine())
}

// cuttingNode is a node whose process cuts a GPU that has these instances.
func cuttingNode(t *testing.T, instances ...gpu.Instance) (*node, *dynamicGPU) {
	t.Helper()
	n, d := newNode(t), &dynamicGPU{instances: instances}
	n.cuts(d)
	return n, d
}

// leaves checks that nothing is left of any claim, and that the GPU has these instances.
func (n *node) leaves(t *testing.T, d *dynamicGPU, uuids ...string) {
	t.Helper()
	n.leavesNothing(t)
	var left []string
	for _, i := range d.instances {
		left = append(left, i.UUID)
	}
	expect.Equal(t, uuids, left, "instances")
}

// mayDie calls do, whose goroutine may end in it.
func mayDie(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	<-done
}

const (
	oneSlice  = "gpu-4-mig-1g-10gb-6"
	fourOf    = "gpu-4-mig-3g-40gb-0"
	elsewhere = "gpu-4-mig-1g-10gb-3"
)

func TestInstanceIsMadeForAClaimAndDestroyedAfterIt(t *testing.T) {
	n, d := cuttingNode(t)
	devices, err := n.Prepare(t.Context(), instanceClaim("a", oneSlice))
	if err != nil || len(devices) != 1 {
		t.Fatalf("%v, %v", devices, err)
	}
	if len(d.instances) != 1 || d.instances[0].Start != 6 || d.instances[0].UUID != "MIG-made-1" {
		t.Errorf("made: %+v", d.instances)
	}
	r := n.recordOf(t, "a")
	if g := r.Grants[0].GPU; g.UUID != "MIG-made-1" || g.MIG.GI != 13 || r.Phase != state.Prepared ||
		r.Effects[0].Instance.UUID != "MIG-made-1" {
		t.Errorf("recorded: %+v", r)
	}
	if again, err := n.Prepare(t.Context(), instanceClaim("a", oneSlice)); err != nil || len(again) != 1 || d.made != 1 {
		t.Errorf("again: %v, %v, %d made", again, err, d.made)
	}
	expect.NoError(t, n.Unprepare(t.Context(), "a"))
	n.leaves(t, d)
}

// slowGPU takes a second to make an instance.
type slowGPU struct{ *dynamicGPU }

func (d slowGPU) MakeComputeInstance(ctx context.Context, gpu string, gi int) (gpu.Instance, error) {
	time.Sleep(time.Second) // in the bubble's time
	return d.dynamicGPU.MakeComputeInstance(ctx, gpu, gi)
}

// The kubelet may ask for a claim of two pods twice at once.
func TestInstanceOfAClaimOfTwoPodsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, d := cuttingNode(t)
		n.options.Partitions = slowGPU{d}
		var asking sync.WaitGroup
		for _, pod := range []types.UID{"p1", "p2"} {
			c := reservedFor(instanceClaim("a", oneSlice), pod)
			asking.Go(func() {
				if devices, err := n.Prepare(t.Context(), c); err != nil || len(devices) != 1 {
					t.Errorf("for pod %s: %v, %v", pod, devices, err)
				}
			})
		}
		asking.Wait()
		expect.Equal(t, 1, d.made, "made")
	})
}

// Whenever the process is killed, the next one finds a prepared claim with its instance, or has nothing left of it; and
// nobody else's instance is touched.
func TestKillsWhileAnInstanceIsMadeAndDestroyed(t *testing.T) {
	foreign := at(5, "MIG-foreign")
	for _, tc := range []struct {
		name string
		do   func(n *node)
	}{
		{"prepare", func(n *node) { _, _ = n.Prepare(context.Background(), instanceClaim("a", oneSlice, elsewhere)) }},
		{"unprepare", func(n *node) {
			d := n.options.Partitions.(*dynamicGPU)
			kill := d.killAt
			d.killAt = 0
			if _, err := n.Prepare(context.Background(), instanceClaim("a", oneSlice, elsewhere)); err != nil {
				t.Error(err)
			}
			d.steps, d.killAt = 0, kill
			_ = n.Unprepare(context.Background(), "a")
		}},
	} {
		for kill := 1; ; kill++ {
			n, d := newNode(t), &dynamicGPU{instances: []gpu.Instance{foreign}, killAt: kill}
			n.cuts(d)
			mayDie(func() { tc.do(n) })
			if kill > 2*d.steps {
				if kill < 12 {
					t.Errorf("%s: only %d steps", tc.name, d.steps)
				}
				break // it was not killed
			}
			d.killAt = 0
			n.restart(t)
			n.cuts(d)
			// The second time, the GPUs were read again.
			for range 2 {
				expect.NoErrorf(t, n.Recover(t.Context()), "%s, kill %d", tc.name, kill)
			}
			prepared := slices.ContainsFunc(n.files(t), func(f string) bool { return f == "a.json" })
			if prepared && (n.recordOf(t, "a").Phase != state.Prepared || len(d.instances) != 3) ||
				!prepared && (len(d.instances) != 1 || len(n.files(t)) > 0) {
				t.Errorf("%s, kill %d: %v with instances %+v", tc.name, kill, n.files(t), d.instances)
			}
			n.takes(t, instanceClaim("a", oneSlice, elsewhere))
			if err := n.Unprepare(t.Context(), "a"); err != nil || len(n.files(t)) > 0 ||
				!slices.EqualFunc(d.instances, []gpu.Instance{foreign}, func(a, b gpu.Instance) bool { return a.UUID == b.UUID }) {
				t.Errorf("%s, kill %d: at the end: %v, %v, %+v", tc.name, kill, err, n.files(t), d.instances)
			}
		}
	}
}

func TestInstancesOfOthersAreLeftAlone(t *testing.T) {
	foreign := at(6, "MIG-foreign")
	foreign.ProfileID, foreign.Profile = 20, "1g.10gb+me"
	n, d := cuttingNode(t, foreign)
	n.refuses(t, instanceClaim("a", oneSlice),
		"GPU 4's 1g.10gb at slice 6 cannot be made: 1g.10gb+me at slice 6 is in the way")
	if len(d.instances) != 1 || len(n.files(t)) > 0 {
		t.Errorf("left: %+v %v", d.instances, n.files(t))
	}
	// Somebody is faster.
	d.instances = nil
	n.cuts(d)
	d.fails = map[string]error{"make-gi": fmt.Errorf("making: %w", gpu.ErrPlaceTaken)}
	n.refuses(t, instanceClaim("a", oneSlice), "another MIG instance is in the way")
	if len(n.files(t)) > 0 {
		t.Errorf("left: %v", n.files(t))
	}
	// Somebody has made another one in the place since.
	d.fails = nil
	n.takes(t, instanceClaim("a", oneSlice))
	d.instances[0].UUID = "MIG-other"
	n.has(d.machine())
	n.refuses(t, instanceClaim("a", oneSlice), "is not there any more: somebody cut the GPU again")
	if err := n.Unprepare(t.Context(), "a"); err != nil || len(d.instances) != 1 || len(n.files(t)) > 0 {
		t.Errorf("%v; left: %+v %v", err, d.instances, n.files(t))
	}
}

func TestFailuresOfTheDriverLeaveNothing(t *testing.T) {
	for call, want := range map[string]string{"make-gi": "unknown error", "make-ci": "unknown error",
		"instances": "unknown error"} {
		n, d := cuttingNode(t)
		d.fails = map[string]error{call: errors.New("unknown error")}
		n.refuses(t, instanceClaim("a", oneSlice), want)
		n.leaves(t, d)
	}
}

// An instance that a program has open stays its claim's, which is tried again.
func TestInstanceInUseStaysHeld(t *testing.T) {
	n, d := cuttingNode(t)
	n.takes(t, instanceClaim("a", oneSlice))
	d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
	err := n.Unprepare(t.Context(), "a")
	expect.Error(t, err,
		"it stays held until that program ends, and the kubelet tries again by itself; if no pod has it, a monitor "+
			"does, such as DCGM")
	n.refuses(t, instanceClaim("b", oneSlice), "already held as a whole by claim team/claim-a")
	d.fails = nil
	expect.NoError(t, n.Unprepare(t.Context(), "a"))
	n.leaves(t, d)
	n.takes(t, instanceClaim("b", oneSlice))
}

// The scheduler counts slices; the driver does, too.
func TestPlacesThatOverlapAreRefused(t *testing.T) {
	n, d := cuttingNode(t)
	both := instanceClaim("both", fourOf, elsewhere)
	n.refuses(t, both, "promised twice")
	n.leaves(t, d)
}

func TestInstanceIsMadeAnewAfterAReboot(t *testing.T) {
	n, d := cuttingNode(t)
	c := instanceClaim("a", oneSlice)
	n.takes(t, c)
	d.instances = nil
	n.restart(t)
	n.options.BootID = "boot-2"
	n.cuts(d)
	// What nobody has any more is missed by nobody, also while the claim's pod is not back.
	if err := n.Recover(t.Context()); err != nil || len(n.files(t)) > 0 {
		t.Errorf("%v; left: %v", err, n.files(t))
	}
	n.takes(t, c)
	if r := n.recordOf(t, "a"); r.Grants[0].GPU.UUID != "MIG-made-2" || len(d.instances) != 1 {
		t.Errorf("recorded: %+v, instances %+v", r, d.instances)
	}
}

// What a claim had goes before it is prepared again, and is not given to it again.
func TestInstanceIsMadeAnewForAClaimThatIsAllocatedAnew(t *testing.T) {
	n, d := cuttingNode(t)
	c := instanceClaim("a", oneSlice)
	n.takes(t, c)
	c.Status.Allocation.Devices.Results[0].Request = "renamed"
	n.takes(t, c)
	if r := n.recordOf(t, "a"); len(d.instances) != 1 || r.Grants[0].GPU.UUID != d.instances[0].UUID || d.made != 2 {
		t.Errorf("recorded: %+v, instances %+v", r, d.instances)
	}
}

func TestAdminAccessMakesNothing(t *testing.T) {
	n, d := cuttingNode(t)
	c := instanceClaim("a", oneSlice)
	c.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	n.refuses(t, c, "adminAccess sees only what is there")
	n.leaves(t, d)
}
