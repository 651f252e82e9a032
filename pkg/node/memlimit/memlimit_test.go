// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
)

// driver is NVIDIA's driver of a GPU, as limits.md has it (§2): limits by directory, of which
// Misc tells the nearest one above, and nothing where there is none. Misc drops none: "no limit" is one like others.
type driver struct {
	kind   Kind
	limits map[string]uint64
	used   map[string]uint64
	// deaf is a driver that takes limits and applies none, flat one of which each holds its own group alone, refuses one
	// that takes none.
	deaf, flat bool
	refuses    error
	// asked, if any, is called before each "set" and "get", with the directory; address is the GPU's.
	asked   func(call, dir string) error
	address string
}

func (d *driver) Set(dir string, hard uint64) error {
	if d.asked != nil {
		if err := d.asked("set", dir); err != nil {
			return err
		}
	}
	switch _, err := os.Stat(dir); {
	case err != nil:
		return err
	case d.refuses != nil:
		return d.refuses
	case d.deaf:
	case hard == memlimit.NoLimit && d.kind == DMem:
		delete(d.limits, dir)
	case d.kind == Misc && hard < d.used[dir]:
		return errors.New("less than is in use")
	default:
		d.limits[dir] = hard
	}
	return nil
}

func (d *driver) Get(dir string) (memlimit.Limit, error) {
	if d.asked != nil {
		if err := d.asked("get", dir); err != nil {
			return memlimit.Limit{}, err
		}
	}
	for at := dir; at != "/"; at = filepath.Dir(at) {
		if hard, is := d.limits[at]; is {
			return memlimit.Limit{Hard: hard, Used: d.used[at]}, nil
		}
		if d.kind == DMem {
			return memlimit.Limit{Hard: memlimit.NoLimit, Used: d.used[dir]}, nil
		}
		if d.flat {
			break
		}
	}
	return memlimit.Limit{}, fmt.Errorf("misc: %w", memlimit.ErrUnset)
}

func (d *driver) PCIAddress() (string, error) { return d.address, nil }

// bound is how much processes of a control group can have, in MiB: of DMem by the tightest
// limit of it and all above, by Misc by the nearest; -1 for any amount.
func (d *driver) bound(dir string) int64 {
	least := int64(-1)
	for at := dir; at != "/"; at = filepath.Dir(at) {
		hard, is := d.limits[at]
		if is && hard != memlimit.NoLimit && (least < 0 || int64(hard/mib) < least) {
			least = int64(hard / mib)
		}
		if is && d.kind == Misc {
			break
		}
	}
	return least
}

// node is a Host with pods in a directory that stands in for control groups.
type node struct {
	Host
	*driver
	t *testing.T
	c Target
}

func newNode(t *testing.T, k Kind) *node {
	return &node{
		Host:   Host{Root: t.TempDir(), Ledger: filepath.Join(t.TempDir(), "memory-limits")},
		driver: &driver{kind: k, limits: map[string]uint64{}, used: map[string]uint64{}, address: "0000:02:00.0"}, t: t,
		c: Target{UUID: "GPU-a", Kind: k, MemoryMiB: 15 << 10},
	}
}

// start is a container of a pod that has a share.
func (n *node) start(pod, container, share string, gib int64, change ...func(*Start)) error {
	n.t.Helper()
	podDir := "/kubepods/pod" + pod
	s := Start{Entry: Entry{Pod: types.UID(pod), PodDir: podDir, Dir: podDir + "/" + container, Container: container,
		Claim: types.UID("claim-" + share), Share: share, MiB: gib << 10}}
	for _, c := range change {
		c(&s)
	}
	expect.NoError(n.t, os.MkdirAll(n.dir(s.Dir), 0o755))
	return n.Apply(n.driver, n.c, s)
}

func only(s *Start) { s.OnlyShare = true }

func (n *node) ends(group string) {
	n.t.Helper()
	expect.NoError(n.t, os.RemoveAll(n.dir("/kubepods/pod"+group)))
}

// has compares the limits, in GiB, by group below the pods'; -1 is none.
func (n *node) has(want map[string]int64) {
	n.t.Helper()
	got := map[string]int64{}
	for dir, limit := range n.limits {
		group := strings.TrimPrefix(dir, n.dir("/kubepods/pod"))
		if got[group] = int64(limit >> 30); limit == memlimit.NoLimit {
			got[group] = -1
		}
	}
	expect.Equal(n.t, want, got, "limits")
}

// notes checks of how many GPUs limits are noted.
func (n *node) notes(want int) {
	n.t.Helper()
	gpus, err := n.GPUs()
	expect.NoError(n.t, err)
	expect.Equal(n.t, want, len(gpus), "noted are %v", gpus)
}

func (n *node) must(err error) {
	n.t.Helper()
	expect.NoError(n.t, err)
}

func TestBudgetByDMem(t *testing.T) {
	n := newNode(t, DMem)
	n.must(n.start("1", "a", "s", 3, only))
	n.has(map[string]int64{"1": 3, "1/a": 3})
	// Another container of the share: one budget, which each of them is told.
	n.must(n.start("1", "b", "s", 3, only))
	n.has(map[string]int64{"1": 3, "1/a": 3, "1/b": 3})
	// Another share of the pod, and another pod.
	n.must(n.start("1", "c", "t", 2))
	n.must(n.start("2", "d", "u", 4, only))
	n.has(map[string]int64{"1": 5, "1/a": 3, "1/b": 3, "1/c": 2, "2": 4, "2/d": 4})
	// A restart is a new group.
	n.ends("1/c")
	n.must(n.start("1", "c2", "t", 2))
	expect.Equal(t, 5, n.limits[n.dir("/kubepods/pod1")]>>30, "GiB of the pod after a restart")
	expect.Equal(t, 2<<10, n.bound(n.dir("/kubepods/pod1/c2")), "MiB of the container that was started again")
	// No limit is more than the GPU has.
	n.must(n.start("1", "e", "v", 12))
	expect.Equal(t, 15, n.limits[n.dir("/kubepods/pod1")]>>30, "GiB of the pod")
}

// Only the nearest limit counts by Misc (§1): of one share the pod's, of several each
// container's.
func TestBudgetByMisc(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.must(n.start("1", "b", "s", 3, only))
	n.has(map[string]int64{"1": 3})
	n.must(n.start("2", "a", "t", 3))
	n.must(n.start("2", "b", "u", 2))
	n.has(map[string]int64{"1": 3, "2/a": 3, "2/b": 2})
	// A share of another claim beside one that is its pod's limit.
	n.must(n.start("1", "c", "v", 4, only))
	n.has(map[string]int64{"1": 3, "1/c": 4, "2/a": 3, "2/b": 2})
	for group, want := range map[string]int64{"1/a": 3, "1/b": 3, "1/c": 4, "2/a": 3, "2/b": 2} {
		expect.Equal(t, want<<10, n.bound(n.dir("/kubepods/pod"+group)), "MiB of %s", group)
	}
}

func TestLimitsThatAreSwitchedOff(t *testing.T) {
	for _, k := range []Kind{DMem, Misc} {
		n := newNode(t, k)
		n.must(n.start("1", "a", "s", 3))
		n.must(n.start("1", "b", "t", 15, func(s *Start) { s.Lifted, s.MaxContainers = true, 1 }))
		expect.Equal(t, 15<<10, n.bound(n.dir("/kubepods/pod1/b")), "%s: MiB of the container without limits", k)
		expect.Equal(t, 3<<10, n.bound(n.dir("/kubepods/pod1/a")), "%s: MiB of the one beside it", k)
	}
}

func TestContainerThatDoesNotStart(t *testing.T) {
	for _, k := range []Kind{DMem, Misc} {
		for name, tc := range map[string]struct {
			driver driver
			want   string
		}{
			"limits are not applied": {driver{deaf: true},
				map[Kind]string{DMem: "was set and reads unlimited, not 3072 MiB",
					Misc: "no memory limit is set"}[k]},
			"limits are refused": {driver{refuses: fmt.Errorf("insufficient permissions")}, "insufficient permissions"},
		} {
			t.Run(string(k)+" "+name, func(t *testing.T) {
				n := newNode(t, k)
				n.deaf, n.refuses = tc.driver.deaf, tc.driver.refuses
				for _, change := range [][]func(*Start){{only}, nil} {
					expect.Error(t, n.start("1", "a", "s", 3, change...), tc.want)
				}
				n.notes(0)
			})
		}
	}
}

// Pods have no control group in common: a claim that several use is bound by their number.
func TestContainersOfAShare(t *testing.T) {
	n := newNode(t, DMem)
	two := func(s *Start) { s.MaxContainers = 2 }
	n.must(n.start("1", "a", "s", 3, two))
	n.must(n.start("2", "a2", "s", 3, two))
	n.must(n.start("2", "a2", "s", 3, two)) // the same again
	expect.Error(t, n.start("3", "a3", "s", 3, two), "CONTAINERS_PER_SHARE")
	n.must(n.start("3", "b", "t", 3, two))
	n.ends("1")
	n.must(n.start("3", "a3", "s", 3, two))
}

func TestCheckSetsAgain(t *testing.T) {
	for _, k := range []Kind{DMem, Misc} {
		t.Run(string(k), func(t *testing.T) {
			n := newNode(t, k)
			n.must(n.start("1", "a", "s", 3, only))
			n.must(n.start("2", "b", "t", 2))
			n.checked(0)
			// The driver was reloaded.
			before := n.limits
			n.limits = map[string]uint64{}
			expect.Equal(t, "a", n.checked(2)[0].Container, "the first one")
			expect.Equal(t, before, n.limits, "limits")
			// Somebody raised one, and the driver takes none now.
			group := map[Kind]string{DMem: "1/a", Misc: "1"}[k]
			n.limits[n.dir("/kubepods/pod"+group)] = 9 << 30
			n.refuses = fmt.Errorf("insufficient permissions")
			missing, err := n.Check(n.driver, n.c, prepared)
			if err != nil || len(missing) != 1 || missing[0].Failed == nil ||
				!strings.Contains(missing[0].Found.Error(), "9216 MiB") {
				t.Fatalf("%+v, %v", missing, err)
			}
		})
	}
}

func TestCheckForgets(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.must(n.start("2", "b", "t", 2))
	n.ends("2")
	missing, err := n.Check(n.driver, n.c, func(uid types.UID) (bool, error) { return uid != "claim-s", nil })
	if err != nil || len(missing) > 0 {
		t.Fatalf("%+v, %v", missing, err)
	}
	// The table keeps the limit of a pod whose claim is gone: it has to be lifted.
	n.has(map[string]int64{"1": -1, "2/b": 2})
	n.notes(0)
}

// What is not known to be gone keeps its limit.
func TestCheckThatDoesNotKnow(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	unread := fmt.Errorf("the records cannot be read")
	_, err := n.Check(n.driver, n.c, func(types.UID) (bool, error) { return false, unread })
	expect.ErrorIs(t, err, unread)
	n.has(map[string]int64{"1": 3})
	n.notes(1)
}

func TestUsed(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.used[n.dir("/kubepods/pod1")] = 700 << 20
	used, err := n.Used(n.driver, n.c)
	if diff := expect.Diff([]Used{{Pod: "1", Container: "a", MiB: 700}}, used); err != nil || diff != nil {
		t.Errorf("%v %v", err, diff)
	}
	// Two containers count as one.
	n.must(n.start("1", "b", "s", 3, only))
	n.must(n.start("2", "c", "t", 2))
	used, err = n.Used(n.driver, n.c)
	if diff := expect.Diff([]Used{{Pod: "1", MiB: 700}, {Pod: "2", Container: "c"}}, used); err != nil || diff != nil {
		t.Errorf("%v %v", err, diff)
	}
}

// A ledger that somebody damaged keeps nobody from starting, and never names the root.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`[{"podDir":"/kubepods/pod1","dir":"/kubepods/pod1/a","mib":3}]`))
	f.Add([]byte(`[{"podDir":"/","dir":"/../a"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var entries []Entry
		if json.Unmarshal(data, &entries) != nil {
			return
		}
		for _, e := range slices.DeleteFunc(entries, namesNoGroup) {
			if filepath.Clean("/x"+e.Dir) != "/x"+e.Dir || e.Dir == "/" || e.PodDir == "/" {
				t.Errorf("%+v", e)
			}
		}
	})
}
