// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
)

func TestDetect(t *testing.T) {
	for name, tc := range map[string]struct {
		change   func(*node)
		capacity string
		want     Kind
		why      string
	}{
		"the kernel counts":     {func(n *node) { n.kind = DMem }, "nvidia/00000000:02:00.0/vidmem 1\n", DMem, ""},
		"the driver counts":     {nil, "", Misc, ""},
		"the kernel, other GPU": {nil, "nvidia/00000000:03:00.0/vidmem 1\n", Misc, ""},
		"no limit is applied":   {func(n *node) { n.deaf = true }, "", "", "no memory limit is set"},
		"only its own group":    {func(n *node) { n.flat = true }, "", "", "does not hold the control group below"},
		"none is taken":         {func(n *node) { n.refuses = fmt.Errorf("Not Supported") }, "", "", "Not Supported"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, Misc)
			if tc.change != nil {
				tc.change(n)
			}
			expect.NoError(t, os.MkdirAll(n.dir("/kubepods"), 0o755))
			if tc.capacity != "" {
				expect.NoError(t, os.WriteFile(n.dir("/dmem.capacity"), []byte(tc.capacity), 0o600))
			}
			got, err := n.Detect(n.driver, "/kubepods")
			if got != tc.want || (err != nil) != (tc.why != "") || err != nil && !strings.Contains(err.Error(), tc.why) {
				t.Errorf("%q, %v", got, err)
			}
			left, err := os.ReadDir(n.dir("/kubepods"))
			for dir, limit := range n.limits {
				expect.Equal(t, memlimit.NoLimit, limit, "the limit of %s", dir)
			}
			if err != nil || len(left) > 0 {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
}

func TestCheckRoot(t *testing.T) {
	expect.Error(t, CheckRoot(t.TempDir()), "version 2")
}

// isMisc checks that the driver is found to count.
func (n *node) isMisc() {
	n.t.Helper()
	kind, err := n.Detect(n.driver, "/kubepods")
	expect.NoError(n.t, err)
	expect.Equal(n.t, Misc, kind, "who counts")
}

// GPUs are tried side by side.
func TestDetectBesideAnother(t *testing.T) {
	a, b := newNode(t, Misc), newNode(t, Misc)
	b.Host, b.driver = a.Host, &driver{kind: Misc, limits: map[string]uint64{}, address: "0000:03:00.0"}
	expect.NoError(t, os.MkdirAll(a.dir("/kubepods"), 0o755))
	a.asked = func(string, string) error {
		a.asked = nil
		b.isMisc()
		return nil
	}
	a.isMisc()
}

// What the table keeps of groups that have gone, also of what was tried before, keeps no GPU from being used.
func TestDetectWithStaleLimits(t *testing.T) {
	n := newNode(t, Misc)
	expect.NoError(t, os.MkdirAll(n.dir("/kubepods"), 0o755))
	scratch := n.dir(fmt.Sprintf("/kubepods/%s%d-%s", scratchPrefix, os.Getpid(), n.address))
	for _, stale := range []uint64{memlimit.NoLimit, 3 << 30} {
		n.limits[scratch], n.limits[scratch+"/"+scratchChild] = stale, stale
		n.isMisc()
	}
	n.must(n.start("1", "a", "s", 3, only))
	expect.Equal(t, 3<<10, n.bound(n.dir("/kubepods/pod1/a")), "MiB of the container")
}

// A process that is killed while it tries leaves groups, one in the other.
func TestDetectAfterOneThatWasKilled(t *testing.T) {
	n := newNode(t, Misc)
	const gone = 1 << 30 // more than any process has
	left := fmt.Sprintf("/kubepods/%s%d-x/%s", scratchPrefix, gone, scratchChild)
	expect.NoError(t, os.MkdirAll(n.dir(left), 0o755))
	n.isMisc()
	if left, err := os.ReadDir(n.dir("/kubepods")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
