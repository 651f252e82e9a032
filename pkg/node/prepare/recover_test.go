// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
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
// that; after checks the node once the next process has recovered it.
func killedAtEachStep(
	t *testing.T, c *resourceapi.ResourceClaim, begin func(t *testing.T) *node, mortal func(n *node, k *killer),
	after func(t *testing.T, n *node, operation string),
) {
	for _, operation := range []string{"prepare", "unprepare"} {
		for step, dead := 1, true; dead; step++ {
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
	}
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
	for _, uid := range []types.UID{"u1", "neighbour"} {
		expect.NoError(t, n.Unprepare(t.Context(), uid))
	}
	n.leavesNothing(t)
}

func TestRecoverWithoutGPUsKeepsClaims(t *testing.T) {
	n := newNode(t)
	n.takes(t, wholeGPUs("u1", 0))
	n.restart(t)
	n.SetInventory(nil)
	expect.NoError(t, n.Recover(t.Context()))
	if files := n.files(t); len(files) != 2 {
		t.Errorf("files %v: a driver that cannot be reached must not cost a running pod its GPU", files)
	}
	expect.NoErrorf(t, n.Unprepare(t.Context(), "u1"), "a pod could not end without the driver")
}
