// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// killer stops a Preparer at one of its effects, as a kill would: nothing
// after that point happens.
type killer struct{ countdown int }

type killed struct{}

// point is passed before and after each effect, and in the middle of a write.
func (k *killer) point() {
	k.countdown--
	if k.countdown == 0 {
		panic(killed{})
	}
}

type mortalStore struct {
	nodeStore
	dir string
	*killer
}

func (s mortalStore) Put(r state.Record) error {
	s.point()
	half := filepath.Join(s.dir, string(r.UID)+".json"+atomicfile.TempSuffix)
	if err := os.WriteFile(half, []byte(`{"versi`), 0o600); err != nil {
		return err
	}
	s.point()
	err := s.Store.Put(r)
	s.point()
	return err
}

func (s mortalStore) Delete(uid types.UID) error {
	s.point()
	err := s.Store.Delete(uid)
	s.point()
	return err
}

type mortalSpecs struct {
	cdi.Dir
	*killer
}

func (s mortalSpecs) Write(name string, spec *specs.Spec) error {
	s.point()
	half := filepath.Join(string(s.Dir), name+".json"+atomicfile.TempSuffix)
	if err := os.WriteFile(half, []byte(`{"cdiVer`), 0o600); err != nil {
		return err
	}
	s.point()
	err := s.Dir.Write(name, spec)
	s.point()
	return err
}

func (s mortalSpecs) Remove(name string) error {
	s.point()
	err := s.Dir.Remove(name)
	s.point()
	return err
}

// runUntilKilled reports whether do was killed.
func runUntilKilled(do func()) (dead bool) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case killed{}:
			dead = true
		default:
			panic(r)
		}
	}()
	do()
	return false
}

// killedAtEachStep prepares and unprepares the claim on one node for each step at which the process can be killed.
// begin makes a node; mortal passes all that outlives the process through the killer, and has the node's Preparer use
// that; after checks the node once the next process has recovered it. It returns how many steps the shorter operation
// has.
func killedAtEachStep(
	t *testing.T, c *resourceapi.ResourceClaim, begin func(t *testing.T) *node, mortal func(n *node, k *killer),
	after func(t *testing.T, n *node, operation string),
) (steps int) {
	steps = math.MaxInt
	for _, operation := range []string{"prepare", "unprepare"} {
		step, dead := 1, true
		for ; dead; step++ {
			t.Run(fmt.Sprintf("%s/%d", operation, step), func(t *testing.T) {
				n := begin(t)
				if operation == "unprepare" {
					n.takes(t, c)
				}
				k := &killer{countdown: step}
				n.options.Store = mortalStore{n.options.Store.(nodeStore), n.stateDir, k}
				n.options.Specs = mortalSpecs{cdi.Dir(n.cdiDir), k}
				mortal(n, k)
				var err error
				dead = runUntilKilled(func() {
					if operation == "unprepare" {
						err = n.Unprepare(t.Context(), c.UID)
					} else {
						_, err = n.Prepare(t.Context(), c)
					}
				})
				expect.NoError(t, err)
				n.restart(t)
				mortal(n, &killer{})
				expect.NoError(t, n.Recover(t.Context()))
				after(t, n, operation)
			})
		}
		steps = min(steps, step-2) // the last one was not killed
	}
	return steps
}

// After a kill at any point and a restart, the claim is prepared or has left no trace, its neighbour is untouched, and
// both calls work.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	withNeighbour := func(t *testing.T) *node {
		n := newNode(t)
		n.takes(t, sharesOf("neighbour", 0, 12))
		return n
	}
	killedAtEachStep(t, sharesOf("u1", 0, 3), withNeighbour, func(*node, *killer) {},
		func(t *testing.T, n *node, _ string) { checkPreparedOrGone(t, n) })
}

func checkPreparedOrGone(t *testing.T, n *node) {
	t.Helper()
	if len(n.damaged) > 0 {
		t.Errorf("damaged records: %v", n.damaged)
	}
	records := n.records(t)
	for _, r := range records {
		expect.Equal(t, state.Prepared, r.Phase, "claim %s is left in phase", r.UID)
	}
	if files := n.files(t); len(files) != 2*len(records) || len(records) < 1 || len(records) > 2 {
		t.Errorf("%d prepared claims, but these files: %v", len(records), files)
	}
	devices := n.takes(t, sharesOf("u1", 0, 3))
	n.env(t, devices[0].CDIDeviceIDs[0])
	n.givesBack(t, "u1", "neighbour")
	n.leavesNothing(t)
}

func TestRecoverWithoutGPUsKeepsClaims(t *testing.T) {
	n := newNode(t)
	n.takes(t, wholeGPUs("u1", 0))
	n.restart(t)
	n.SetInventory(nil)
	expect.NoError(t, n.Recover(t.Context()))
	expect.Equal(t, 2, len(n.files(t)), "files: a driver that cannot be reached must not cost a running pod its GPU")
	expect.NoErrorf(t, n.Unprepare(t.Context(), "u1"), "a pod could not end without the driver")
}

// A pod whose GPU is not there any more gets nowhere by itself, and is told what helps. A GPU that cannot be read may
// be the one, and come back.
func TestGPUThatIsGone(t *testing.T) {
	const gone = "GPU 3 (GPU-3) is not there any more: delete the pod, so that it is placed again"
	without := func(faults ...gpu.Fault) *gpu.Machine {
		m := machine()
		m.GPUs, m.Faults = m.GPUs[:3], faults
		return m
	}
	inMIGMode := without()
	inMIGMode.Partitioned = []gpu.Partitioned{{GPU: gpu.GPU{Index: 3, UUID: "GPU-3"}}}
	for name, tc := range map[string]struct {
		machine *gpu.Machine
		want    string
	}{
		"gone":                          {without(), gone},
		"gone, beside one that is lost": {without(gpu.Fault{Index: 1, UUID: "GPU-1"}), gone},
		"lost":                          {without(gpu.Fault{Index: 3, UUID: "GPU-3"}), "GPU GPU-3 is unknown"},
		"one that nobody can read":      {without(gpu.Fault{Index: 2}), "GPU GPU-3 is unknown"},
		"in MIG mode":                   {inMIGMode, "GPU GPU-3 is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			c := reservedFor(wholeGPUs("u0", 3), "p0")
			n.prepared(t, c)
			n.restart(t)
			n.options.BootID = "boot-2"
			missing := map[string]error{"GPU-3": fmt.Errorf("GPU GPU-3 is unknown")}
			n.SetInventory(&Inventory{Machine: tc.machine, Base: fakeBase{missing: missing, of: tc.machine}})
			expect.Error(t, n.Recover(t.Context()), tc.want)
			err := n.refuses(t, c, tc.want)
			expect.Equal(t, ReasonNotStartable, ReasonOf(err), "reason")
		})
	}
}

// Minor numbers are given again when the NVIDIA driver is loaded. The kubelet starts a container again without asking:
// it must not start with the GPU that another claim has.
func TestSpecOfAGPUThatIsGone(t *testing.T) {
	full := cut(at(0, "MIG-a"), at(1, "MIG-b"))
	without := func(uuid string) *gpu.Machine {
		m := cut(slices.Clone(full.Partitioned[0].Instances)...)
		m.GPUs = slices.DeleteFunc(m.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid })
		m.Partitioned[0].Instances = slices.DeleteFunc(m.Partitioned[0].Instances,
			func(i gpu.Instance) bool { return i.UUID == uuid })
		return m
	}
	before := map[string]string{"GPU-1": "/dev/nvidia1", "GPU-2": "/dev/nvidia2", "MIG-a": "/dev/nvidia4",
		"MIG-b": "/dev/nvidia4"}
	loadedAnew := map[string]string{"GPU-2": "/dev/nvidia1", "MIG-a": "/dev/nvidia3"}
	lost := without("GPU-1")
	lost.Faults = []gpu.Fault{{Index: 1, UUID: "GPU-1"}}
	for name, tc := range map[string]struct {
		device string
		after  *gpu.Machine
		paths  map[string]string
		stays  bool
	}{
		"gone":                         {"gpu-1", without("GPU-1"), before, true},
		"gone, the driver reloaded":    {"gpu-1", without("GPU-1"), loadedAnew, false},
		"lost, the driver reloaded":    {"gpu-1", lost, loadedAnew, false},
		"its node an instance's GPU's": {"gpu-1", without("GPU-1"), map[string]string{"MIG-a": "/dev/nvidia1"}, false},
		"an instance":                  {"gpu-4-mig-1g-10gb-1", without("MIG-b"), before, true},
		"an instance, its node a GPU's": {"gpu-4-mig-1g-10gb-1", without("MIG-b"), map[string]string{"GPU-2": "/dev/nvidia4"},
			false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.SetInventory(&Inventory{Machine: full, Base: fakeBase{of: full, paths: before}})
			n.prepared(t, instanceClaim("u0", tc.device), instanceClaim("u2", "gpu-2"))
			n.restart(t)
			n.SetInventory(&Inventory{Machine: tc.after, Base: fakeBase{of: tc.after, paths: tc.paths}})
			for range 2 {
				if err := n.Recover(t.Context()); err == nil {
					t.Error("a claim is recovered without what it was granted")
				}
				err := n.repairer().Repair(t.Context())
				expect.Equal(t, tc.stays, err == nil, "repaired: %v", err)
			}
			brings := func(uid types.UID) []string {
				t.Helper()
				paths, err := n.options.Specs.Nodes(cdi.SpecName(uid))
				expect.NoError(t, err)
				return paths
			}
			expect.Equal(t, tc.stays, len(brings("u0")) > 0, "it brings %v", brings("u0"))
			expect.Equal(t, []string{cmp.Or(tc.paths["GPU-2"], "/dev/GPU-2")}, brings("u2"), "the other claim's spec")
			// What comes back is the claim's again.
			n.SetInventory(&Inventory{Machine: full, Base: fakeBase{of: full, paths: before}})
			expect.NoError(t, n.repairer().Repair(t.Context()))
			expect.Equal(t, []string{before[n.recordOf(t, "u0").Grants[0].GPU.UUID]}, brings("u0"), "when it is back")
		})
	}
}
