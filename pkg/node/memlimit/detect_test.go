// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"fmt"
	"os"
	"strings"
	"testing"
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
		"none is taken":         {func(n *node) { n.refuses = fmt.Errorf("Not Supported") }, "", "", "Not Supported"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, Misc)
			if tc.change != nil {
				tc.change(n)
			}
			if err := os.MkdirAll(n.dir("/kubepods"), 0o755); err != nil {
				t.Fatal(err)
			}
			if tc.capacity != "" {
				if err := os.WriteFile(n.dir("/dmem.capacity"), []byte(tc.capacity), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := n.Detect(n.driver, "/kubepods")
			if got != tc.want || (err != nil) != (tc.why != "") || err != nil && !strings.Contains(err.Error(), tc.why) {
				t.Errorf("%q, %v", got, err)
			}
			if left, err := os.ReadDir(n.dir("/kubepods")); err != nil || len(left) > 0 || len(n.limits) > 0 {
				t.Errorf("%v and %v are left, %v", left, n.limits, err)
			}
		})
	}
}

func TestCheckRoot(t *testing.T) {
	if err := CheckRoot(t.TempDir()); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a plain directory: %v", err)
	}
}

// GPUs are tried side by side.
func TestDetectBesideAnother(t *testing.T) {
	a, b := newNode(t, Misc), newNode(t, Misc)
	b.Host, b.driver = a.Host, &driver{kind: Misc, limits: map[string]uint64{}, address: "0000:03:00.0"}
	if err := os.MkdirAll(a.dir("/kubepods"), 0o755); err != nil {
		t.Fatal(err)
	}
	a.asked = func(string, string) error {
		a.asked = nil
		if kind, err := b.Detect(b.driver, "/kubepods"); kind != Misc || err != nil {
			t.Errorf("the other: %q, %v", kind, err)
		}
		return nil
	}
	if kind, err := a.Detect(a.driver, "/kubepods"); kind != Misc || err != nil {
		t.Errorf("%q, %v", kind, err)
	}
}

// Where a group whose limit was cleared reads as unlimited, its pod's limit would not hold it by Misc (§1).
func TestDetectWhatWouldHideThePod(t *testing.T) {
	n := newNode(t, Misc)
	n.keeps = true
	if err := os.MkdirAll(n.dir("/kubepods"), 0o755); err != nil {
		t.Fatal(err)
	}
	if kind, err := n.Detect(n.driver, "/kubepods"); err == nil || !strings.Contains(err.Error(), "reads unlimited") {
		t.Errorf("%q, %v", kind, err)
	}
}
