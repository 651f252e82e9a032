// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"errors"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A driver that has "no limit" for a limit of the group's own would hide the pod's by Misc: nothing would hold the
// container.
func TestNoLimitThatHidesThePods(t *testing.T) {
	n := newNode(t, Misc)
	n.keeps = true
	if err := n.start("1", "a", "s", 3, only); err == nil || !strings.Contains(err.Error(), "reads unlimited, not 3072 MiB") {
		t.Errorf("a container starts that may have %d MiB: %v", n.bound(n.dir("/kubepods/pod1/a")), err)
	}
	// One that runs is told of.
	n = newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.keeps, n.limits[n.dir("/kubepods/pod1/a")] = true, 1<<64-1
	missing, err := n.Check(n.driver, n.c, func(types.UID) (bool, error) { return true, nil })
	if err != nil || len(missing) != 1 || missing[0].Failed == nil {
		t.Errorf("%+v, %v", missing, err)
	}
}

// A stale limit (§2) that is as large as the pod's reads like the pod's. It has to go all the same: what a container
// takes below its own limit is not counted for its pod.
func TestStaleLimitThatReadsAsThePods(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.limits[n.dir("/kubepods/pod1/b")] = 3 << 30
	n.must(n.start("1", "b", "s", 3, only))
	n.has(map[string]int64{"1": 3})
}

// A start that fails, or whose hook is ended, leaves its pod's other containers as they were, and nobody is told that
// these were without limits.
func TestStartThatFailsBesideAnother(t *testing.T) {
	const pod, leaf = "/kubepods/pod1", "/kubepods/pod1/b"
	failed := errors.New("no answer")
	killed := func() error { panic(failed) }
	fails := func() error { return failed }
	for name, tc := range map[string]struct {
		call, group string
		how         func() error
		pod         int64
	}{
		"its own limit is refused":         {"set", leaf, fails, 3},
		"its own limit cannot be read":     {"get", leaf, fails, 3},
		"the pod's limit is refused":       {"set", pod, fails, 3},
		"the pod's limit cannot be read":   {"get", pod, fails, 3},
		"ended while its own limit is set": {"set", leaf, killed, 3},
		"ended while its own is read":      {"get", leaf, killed, 3},
		// Its share counts for the pod from then on.
		"ended while the pod's is read": {"get", pod, killed, 5},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, DMem)
			n.must(n.start("1", "a", "s", 3))
			n.asked = func(call, dir string) error {
				if call != tc.call || dir != n.dir(tc.group) {
					return nil
				}
				n.asked = nil
				return tc.how()
			}
			func() {
				defer func() { _ = recover() }()
				if err := n.start("1", "b", "t", 2); !errors.Is(err, failed) {
					t.Errorf("it starts: %v", err)
				}
			}()
			n.asked = nil
			n.ends("1/b")
			delete(n.limits, n.dir(leaf)) // The kernel drops it with the group (§2).
			n.has(map[string]int64{"1": tc.pod, "1/a": 3})
			missing, err := n.Check(n.driver, n.c, func(types.UID) (bool, error) { return true, nil })
			if err != nil || len(missing) > 0 {
				t.Errorf("it is said that others are without limits: %+v, %v", missing, err)
			}
		})
	}
}

// What cannot be written down is not done to the pod: each try of its container would do it again.
func TestStartThatCannotBeWrittenDown(t *testing.T) {
	n := newNode(t, DMem)
	n.must(n.start("1", "a", "s", 3))
	full := n.Ledger + "/" + n.c.UUID + fileSuffix + ".tmp"
	if err := os.Mkdir(full, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := n.start("1", "b", "t", 2); err == nil {
		t.Error("it starts")
	}
	if got := n.limits[n.dir("/kubepods/pod1")] >> 30; got != 3 {
		t.Errorf("the pod has %d GiB", got)
	}
}

// The driver's table would keep a limit that nobody has noted.
func TestLimitOfAPodByMiscIsNotLeft(t *testing.T) {
	none := func(types.UID) (bool, error) { return false, nil }
	n := newNode(t, Misc)
	n.asked = func(call, dir string) error {
		if call == "get" && dir == n.dir("/kubepods/pod1/a") {
			panic("the hook is ended")
		}
		return nil
	}
	func() {
		defer func() { _ = recover() }()
		_ = n.start("1", "a", "s", 3, only)
	}()
	n.asked = nil
	if _, err := n.Check(n.driver, n.c, none); err != nil || len(n.limits) > 0 {
		t.Errorf("after a hook that was ended: %v, %v", n.limits, err)
	}
	n.asked = func(call, dir string) error {
		if call == "get" && dir == n.dir("/kubepods/pod1/a") {
			return errors.New("no answer")
		}
		return nil
	}
	if err := n.start("1", "a", "s", 3, only); err == nil || len(n.limits) > 0 {
		t.Errorf("after a start that failed: %v, %v", n.limits, err)
	}
}
