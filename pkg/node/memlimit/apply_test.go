// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"errors"
	"os"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
)

func prepared(types.UID) (bool, error) { return true, nil }

// checked looks at all limits, and returns those that were missing: so many, and each is set again.
func (n *node) checked(want int) []Missing {
	n.t.Helper()
	missing, err := n.Check(n.driver, n.c, prepared)
	expect.NoError(n.t, err)
	if len(missing) != want || slices.ContainsFunc(missing, func(m Missing) bool { return m.Failed != nil }) {
		n.t.Fatalf("missing are %+v, want %d, and that they are set again", missing, want)
	}
	return missing
}

// endsMeanwhile starts a container whose hook is ended by a panic of the driver.
func (n *node) endsMeanwhile(start func() error) {
	n.t.Helper()
	defer func() { _ = recover() }()
	n.t.Errorf("it starts: %v", start())
}

// isWell is that all containers have their limits: this one 3 GiB.
func (n *node) isWell(leaf string) {
	n.t.Helper()
	if bound := n.bound(n.dir(leaf)); bound != 3<<10 {
		n.t.Errorf("%s may have %d MiB", leaf, bound)
	}
	n.checked(0)
}

// A limit of a container that is gone, by the address of its group (§2), hides the pod's, and nothing takes it off.
// One that is as large reads like the pod's. What a container takes below it is not counted for the pod.
func TestStaleLimitByMisc(t *testing.T) {
	const a, b, c = "/kubepods/pod1/a", "/kubepods/pod1/b", "/kubepods/pod1/c"
	for _, stale := range []uint64{10 << 30, 1 << 30, 3 << 30, memlimit.NoLimit} {
		n := newNode(t, Misc)
		n.limits[n.dir(a)] = stale
		n.must(n.start("1", "a", "s", 3, only))
		n.has(map[string]int64{"1": -1, "1/a": 3})
		n.isWell(a)
		// What one that started beside it, and one that is started again, have is the pod's.
		n.must(n.start("1", "b", "s", 3, only))
		n.ends("1/a")
		n.must(n.start("1", "a2", "s", 3, only))
		n.has(map[string]int64{"1": 3, "1/a": 3})
		n.isWell(b)
		// There the pod has its limit before.
		n.limits[n.dir(c)] = stale
		n.must(n.start("1", "c", "s", 3, only))
		n.has(map[string]int64{"1": 3, "1/a": 3, "1/c": 3})
		n.isWell(c)
	}
}

// The pod's limit goes once the only container that runs has one of its own.
func TestStaleLimitOfAContainerThatIsStartedAgain(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.ends("1/a")
	n.limits[n.dir("/kubepods/pod1/b")] = 10 << 30
	n.must(n.start("1", "b", "s", 3, only))
	n.has(map[string]int64{"1": -1, "1/b": 3})
	n.isWell("/kubepods/pod1/b")
}

// Somebody may have lifted the limit of one that runs.
func TestNoLimitThatHidesThePods(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.limits[n.dir("/kubepods/pod1/a")] = memlimit.NoLimit
	expect.Error(t, n.checked(1)[0].Found, "reads unlimited, not 3072 MiB")
	n.isWell("/kubepods/pod1/a")
}

// A pod's limit that somebody raised is told, also where nothing else differs.
func TestPodsLimitThatIsRaised(t *testing.T) {
	for _, k := range []Kind{DMem, Misc} {
		n := newNode(t, k)
		n.must(n.start("1", "a", "s", 3, only))
		n.limits[n.dir("/kubepods/pod1")] = 9 << 30
		n.checked(1)
		n.isWell("/kubepods/pod1/a")
	}
}

// The driver takes no limit below what is in use: a container starts beside one that uses all, too.
func TestStartBesideOneThatUsesAll(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.used[n.dir("/kubepods/pod1")] = 3 << 30
	n.must(n.start("1", "b", "s", 3, only))
	n.has(map[string]int64{"1": 3})
}

// It is seen by the pod's limit whether its container's follows: a hook may be ended meanwhile.
func TestEndedWhileALimitIsTold(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.asked = func(call, _ string) error {
		if call == "get" && n.limits[n.dir("/kubepods/pod1")] == 3<<30-mib {
			panic("the hook is ended")
		}
		return nil
	}
	n.endsMeanwhile(func() error { return n.start("1", "b", "s", 3, only) })
	n.asked = nil
	expect.Equal(t, 3<<30-mib, n.limits[n.dir("/kubepods/pod1")], "the pod has")
	n.checked(0) // nobody is told that others are without limits
	n.has(map[string]int64{"1": 3})
}

// The driver may be reloaded so that the kernel counts: the limit of the pod does for containers no more.
func TestPodsLimitOnceTheKernelCounts(t *testing.T) {
	n := newNode(t, Misc)
	n.must(n.start("1", "a", "s", 3, only))
	n.limits, n.kind, n.c.Kind = map[string]uint64{}, DMem, DMem
	n.checked(1)
	n.has(map[string]int64{"1": 3, "1/a": 3})
	n.isWell("/kubepods/pod1/a")
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
		// pod is what the pod has then, checked what it has after a Check.
		pod, checked int64
	}{
		"its own limit is refused":         {"set", leaf, fails, 3, 3},
		"its own limit cannot be read":     {"get", leaf, fails, 3, 3},
		"the pod's limit is refused":       {"set", pod, fails, 3, 3},
		"the pod's limit cannot be read":   {"get", pod, fails, 3, 3},
		"ended while its own limit is set": {"set", leaf, killed, 3, 3},
		"ended while its own is read":      {"get", leaf, killed, 3, 3},
		// Its share counts for the pod from then on.
		"ended while the pod's is read": {"get", pod, killed, 5, 5},
		"ended while the pod's is set":  {"set", pod, killed, 3, 5},
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
				expect.ErrorIs(t, n.start("1", "b", "t", 2), failed)
			}()
			n.asked = nil
			n.ends("1/b")
			delete(n.limits, n.dir(leaf)) // The kernel drops it with the group (§2).
			n.has(map[string]int64{"1": tc.pod, "1/a": 3})
			n.checked(0) // nobody is told that others are without limits
			n.has(map[string]int64{"1": tc.checked, "1/a": 3})
		})
	}
}

// What cannot be written down is not done to the pod: each try of its container would do it again.
func TestStartThatCannotBeWrittenDown(t *testing.T) {
	n := newNode(t, DMem)
	n.must(n.start("1", "a", "s", 3))
	full := n.Ledger + "/" + n.c.UUID + fileSuffix + ".tmp"
	expect.NoError(t, os.Mkdir(full, 0o755))
	if err := n.start("1", "b", "t", 2); err == nil {
		t.Error("it starts")
	}
	expect.Equal(t, 3, n.limits[n.dir("/kubepods/pod1")]>>30, "GiB of the pod")
}

// The driver's table would keep a limit that nobody has noted.
func TestLimitOfAPodByMiscIsNotLeft(t *testing.T) {
	none := func(types.UID) (bool, error) { return false, nil }
	n := newNode(t, Misc)
	// once is for the container's group, after the pod has its limit.
	once := func(do func() error) func(call, dir string) error {
		return func(call, dir string) error {
			if call == "get" && dir == n.dir("/kubepods/pod1/a") && n.limits[n.dir("/kubepods/pod1")] == 3<<30 {
				n.asked = nil
				return do()
			}
			return nil
		}
	}
	n.asked = once(func() error { panic("the hook is ended") })
	n.endsMeanwhile(func() error { return n.start("1", "a", "s", 3, only) })
	n.has(map[string]int64{"1": 3})
	_, err := n.Check(n.driver, n.c, none)
	expect.NoErrorf(t, err, "after a hook that was ended")
	n.has(map[string]int64{"1": -1})
	failed := errors.New("no answer")
	n.asked = once(func() error { return failed })
	expect.ErrorIs(t, n.start("1", "a", "s", 3, only), failed)
	n.has(map[string]int64{"1": -1})
}
