// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metafile"
)

// The files by which containers learn what they have come with the CDI spec that mounts
// them, are put up again if somebody removes them, and go with it.
func TestMetadataComesAndGoesWithTheSpec(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.options.Metadata = metafile.Dir(dir)
	n.takes(t, sharesOf("u1", 2, 1, 7))
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
	expect.NoError(t, err)
	for _, file := range files {
		if got := strings.Count(string(spec), `"hostPath":"`+file+`"`); got != 1 {
			t.Errorf("the spec mounts %s %d times, want once: %s", file, got, spec)
		}
	}
	expect.NoError(t, os.Remove(files[1]))
	n.takes(t, sharesOf("u1", 2, 1, 7))
	all("prepared again")
	expect.NoError(t, os.RemoveAll(filepath.Join(dir, "u1")))
	expect.NoError(t, (&Repairer{Preparer: n.Preparer, Now: time.Now}).Repair(t.Context()))
	all("repaired")
	expect.NoError(t, n.Unprepare(t.Context(), "u1"))
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
		expect.Equal(t, want, n.Preparer.recordOf(c, "", nil).PodClaimName, "of %.20q", annotation)
	}
}
