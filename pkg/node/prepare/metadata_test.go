// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metafile"
)

// The files by which containers learn what they have come with the CDI spec that mounts
// them, are put up again if somebody removes them, and go with it.
func TestMetadataComesAndGoesWithTheSpec(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	dir := t.TempDir()
	n.options.Metadata = metafile.Dir(dir)
	if _, err := n.Prepare(ctx, sharesOf("u1", 2, 1, 7)); err != nil {
		t.Fatal(err)
	}
	files := []string{filepath.Join(dir, "u1", "r0.json"), filepath.Join(dir, "u1", "r1.json")}
	all := func(when string) {
		t.Helper()
		for _, file := range files {
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	all("prepared")
	spec, err := os.ReadFile(filepath.Join(n.cdiDir, cdi.SpecName("u1")+".json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if got := strings.Count(string(spec), `"hostPath":"`+file+`"`); got != 1 {
			t.Errorf("the spec mounts %s %d times, want once: %s", file, got, spec)
		}
	}
	if err := os.Remove(files[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(ctx, sharesOf("u1", 2, 1, 7)); err != nil {
		t.Fatal(err)
	}
	all("prepared again")
	if err := os.RemoveAll(filepath.Join(dir, "u1")); err != nil {
		t.Fatal(err)
	}
	if err := (&Repairer{Preparer: n.Preparer, Now: time.Now}).Repair(ctx); err != nil {
		t.Fatal(err)
	}
	all("repaired")
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Whoever writes claims can write anything into their annotations, of any length.
func TestNameOfAClaimInItsPod(t *testing.T) {
	n := newNode(t)
	for annotation, want := range map[string]string{
		"gpu": "gpu", "": "", "../../etc": "", strings.Repeat("x", 250_000): "", "a.b": "",
	} {
		c := sharesOf("u1", 1)
		c.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: annotation}
		if got := n.Preparer.recordOf(c, "", nil).PodClaimName; got != want {
			t.Errorf("of %.20q: %.20q, want %q", annotation, got, want)
		}
	}
}
