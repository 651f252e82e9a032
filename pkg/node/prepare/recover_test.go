// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
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

// Whatever the point of the kill, after a restart the claim is prepared or
// there is no trace of it, the neighbour is untouched, and both calls work.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	operations := map[string]func(ctx context.Context, n *node) error{
		"prepare": func(ctx context.Context, n *node) error {
			_, err := n.Prepare(ctx, sharesOf("u1", 0, 3))
			return err
		},
		"unprepare": func(ctx context.Context, n *node) error { return n.Unprepare(ctx, "u1") },
	}
	for name, operation := range operations {
		for step := 1; ; step++ {
			dead := false
			t.Run(fmt.Sprintf("%s/%d", name, step), func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				n := newNode(t)
				if _, err := n.Prepare(ctx, sharesOf("neighbour", 0, 12)); err != nil {
					t.Fatal(err)
				}
				if name == "unprepare" {
					if _, err := n.Prepare(ctx, sharesOf("u1", 0, 3)); err != nil {
						t.Fatal(err)
					}
				}
				k := &killer{countdown: step}
				n.options.Store = mortalStore{n.options.Store.(nodeStore), n.stateDir, k}
				n.options.Specs = mortalSpecs{cdi.Dir(n.cdiDir), k}
				var err error
				dead = runUntilKilled(func() { err = operation(ctx, n) })
				if err != nil {
					t.Fatal(err)
				}
				n.restart(t)
				if err := n.Recover(ctx); err != nil {
					t.Fatal(err)
				}
				checkPreparedOrGone(t, ctx, n)
			})
			if !dead {
				break
			}
		}
	}
}

func checkPreparedOrGone(t *testing.T, ctx context.Context, n *node) {
	t.Helper()
	if len(n.damaged) > 0 {
		t.Errorf("damaged records: %v", n.damaged)
	}
	records, err := n.Prepared(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Phase != state.Prepared {
			t.Errorf("claim %s is left in phase %s", r.UID, r.Phase)
		}
	}
	if files := n.files(t); len(files) != 2*len(records) || len(records) < 1 || len(records) > 2 {
		t.Errorf("%d prepared claims, but these files: %v", len(records), files)
	}
	devices, err := n.Prepare(ctx, sharesOf("u1", 0, 3))
	if err != nil {
		t.Fatalf("the claim cannot be prepared any more: %v", err)
	}
	n.env(t, devices[0].CDIDeviceIDs[0])
	for _, uid := range []types.UID{"u1", "neighbour"} {
		if err := n.Unprepare(ctx, uid); err != nil {
			t.Error(err)
		}
	}
	if left := n.files(t); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRecoverWithoutGPUsKeepsClaims(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	if _, err := n.Prepare(ctx, wholeGPUs("u1", 0)); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	n.SetInventory(nil)
	if err := n.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if files := n.files(t); len(files) != 2 {
		t.Errorf("files %v: a driver that cannot be reached must not cost a running pod its GPU", files)
	}
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Errorf("a pod could not end without the driver: %v", err)
	}
}
