// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
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
	*killer
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

// step does something that a kill can come before, or after.
func (d *dynamicGPU) step(effect func()) {
	d.point()
	effect()
	d.point()
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

// cuts has the node's process cut the GPU.
func (n *node) cuts(d *dynamicGPU) {
	n.options.Partitions = d
	n.options.Rescan = func() { n.has(d.machine()) }
	n.has(d.machine())
}

// cuttingNode is a node whose process cuts a GPU that has these instances.
func cuttingNode(t *testing.T, instances ...gpu.Instance) (*node, *dynamicGPU) {
	t.Helper()
	n, d := newNode(t), &dynamicGPU{instances: instances, killer: &killer{}}
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
	n.givesBack(t, "a")
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
	c := instanceClaim("a", oneSlice, elsewhere)
	var d *dynamicGPU
	cutting := func(t *testing.T) (n *node) {
		n, d = cuttingNode(t, at(5, "MIG-foreign"))
		return n
	}
	mortal := func(n *node, k *killer) {
		d.killer = k
		n.cuts(d)
	}
	steps := killedAtEachStep(t, c, cutting, mortal, func(t *testing.T, n *node, _ string) {
		expect.NoErrorf(t, n.Recover(t.Context()), "once the GPUs were read again")
		if records := n.records(t); len(records) == 0 {
			n.leaves(t, d, "MIG-foreign")
		} else if records[0].Phase != state.Prepared || len(d.instances) != 3 {
			t.Errorf("%v with instances %+v", records, d.instances)
		}
		n.takes(t, c)
		n.givesBack(t, "a")
		n.leaves(t, d, "MIG-foreign")
	})
	if steps < 12 {
		t.Errorf("only %d steps", steps)
	}
}

func TestInstancesOfOthersAreLeftAlone(t *testing.T) {
	foreign := at(6, "MIG-foreign")
	foreign.ProfileID, foreign.Profile = 20, "1g.10gb+me"
	n, d := cuttingNode(t, foreign)
	n.refuses(t, instanceClaim("a", oneSlice),
		"GPU 4's 1g.10gb at slice 6 cannot be made: 1g.10gb+me at slice 6 is in the way")
	n.leaves(t, d, "MIG-foreign")
	// Somebody is faster.
	d.instances = nil
	n.cuts(d)
	d.fails = map[string]error{"make-gi": fmt.Errorf("making: %w", gpu.ErrPlaceTaken)}
	n.refuses(t, instanceClaim("a", oneSlice), "another MIG instance is in the way")
	n.leavesNothing(t)
	// Somebody has made another one in the place since.
	d.fails = nil
	n.takes(t, instanceClaim("a", oneSlice))
	d.instances[0].UUID = "MIG-other"
	n.has(d.machine())
	n.refuses(t, instanceClaim("a", oneSlice), "is not there any more: somebody cut the GPU again")
	n.givesBack(t, "a")
	n.leaves(t, d, "MIG-other")
}

func TestFailuresOfTheDriverLeaveNothing(t *testing.T) {
	for _, call := range []string{"make-gi", "make-ci", "instances"} {
		n, d := cuttingNode(t)
		d.fails = map[string]error{call: errors.New("unknown error")}
		n.refuses(t, instanceClaim("a", oneSlice), "unknown error")
		n.leaves(t, d)
	}
}

// An instance that a program has open stays its claim's, which is tried again.
func TestInstanceInUseStaysHeld(t *testing.T) {
	n, d := cuttingNode(t)
	n.takes(t, instanceClaim("a", oneSlice))
	d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
	expect.Error(t, n.Unprepare(t.Context(), "a"),
		"it stays held until that program ends, and the kubelet tries again by itself; if no pod has it, a monitor "+
			"does, such as DCGM")
	n.refuses(t, instanceClaim("b", oneSlice), "already held as a whole by claim team/claim-a")
	d.fails = nil
	n.givesBack(t, "a")
	n.leaves(t, d)
	n.takes(t, instanceClaim("b", oneSlice))
}

// The scheduler counts slices; the driver does, too.
func TestPlacesThatOverlapAreRefused(t *testing.T) {
	n, d := cuttingNode(t)
	n.refuses(t, instanceClaim("both", fourOf, elsewhere), "promised twice")
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
	expect.NoError(t, n.Recover(t.Context()))
	n.leavesNothing(t)
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
	n.refuses(t, forAdmin(instanceClaim("a", oneSlice)), "adminAccess sees only what is there")
	n.leaves(t, d)
}
