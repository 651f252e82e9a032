// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"errors"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
)

func TestMeanings(t *testing.T) {
	of := func(mib, total int64) filled { return filled{mib: mib, total: total} }
	refused := errors.New("Invalid Argument")
	for want, got := range map[string]string{
		// What others measured: RTX PRO 6000, dmem, 30000 MiB on the leaf; 48943 on the parent alone.
		"held; programs that go by the total fit":              meansLeaf(of(29184, 30000), 30000),
		"held; sizing by the total breaks":                     meansLeaf(of(48128, 97887), 48943),
		"NOT HELD as set; sizing by the total breaks":          meansLeaf(of(8192, 97887), 4096),
		"one budget for the pod":                               meansPod(3072+512, 4096),
		"NO common budget: limit each container":               meansPod(6144, 4096),
		"a leaf hides its pod: limit one or the other (misc)":  meansNesting(of(3500, 4096), 2048),
		"they nest: one rule for both back ends will do":       meansNesting(of(1500, 4096), 2048),
		"managed memory passes: keep the exception":            meansManaged(of(8192, 2048), 2048, 600),
		"paged to the host, or counted and not refused":        meansManaged(of(8192, 2048), 2048, 8792),
		"refused: the level is \"kernel\" plainly":             meansManaged(of(1500, 2048), 2048, 2048),
		"an import is not charged: write it down":              meansImport("imported", 500, 502),
		"an import is charged to who imports":                  meansImport("imported", 500, 1600),
		"not shown: the import failed":                         meansImport("CUDA_ERROR_INVALID_CONTEXT", 0, 0),
		"the client pays: combine with mps":                    meansMPS(1200, 60),
		"the daemon pays: useless under MPS v2":                meansMPS(0, 1200),
		"the checker cannot tighten a running container":       meansTighter(refused, "CUDA_SUCCESS"),
		"accepted and NOT applied to new blocks":               meansTighter(nil, "CUDA_SUCCESS"),
		"only new blocks fail":                                 meansTighter(nil, outOfMemory),
		"the leak is real: soft stays 0":                       meansSoftLeft(1024),
		"no leak":                                              meansSoftLeft(0),
		"none in 10 new groups":                                meansStale(0, 10),
		"limits stay":                                          meansKept(true),
		"limits go: the checker sets them again":               meansKept(false),
		"only privileged pods win":                             meansWrite("Read-only file system", "written"),
		"an ORDINARY pod lifts its own limit":                  meansWrite("written", "written"),
		"neither wins by the file":                             meansWrite("Read-only file system", "Permission denied"),
		"one fails early: publish less than total - reserved":  meansFull(9000, 14336, 4),
		"what is published can be had, less contexts":          meansFull(14336-4*600, 14336, 4),
		"dmem: the kernel counts, limits nest":                 meansCapacity(true),
		"dmem reaches the containers":                          meansControllers([]string{"dmem"}, []string{"dmem"}, true),
		"not all are handed down: with dmem, look again":       meansControllers(nil, []string{"hugetlb"}, false),
		"no line: misc, or off; only the nearest limit counts": meansCapacity(false),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestParseFilled(t *testing.T) {
	for answer, want := range map[string]filled{
		"filled 3584 total 4096: CUDA_ERROR_OUT_OF_MEMORY": {3584, 4096, outOfMemory},
		"filled 8192 total 143771: CUDA_SUCCESS":           {8192, 143771, "CUDA_SUCCESS"},
		"cuInit: CUDA_ERROR_NOT_INITIALIZED (3)":           {},
		"filled 3584 total 4096":                           {},
	} {
		got, err := parseFilled(answer)
		if got != want || (err == nil) != (want != filled{}) {
			t.Errorf("%q: %+v (%v), want %+v", answer, got, err, want)
		}
	}
}

// On an older driver the run says so, and tries all else as before.
func TestMemoryLimitsOfAnOlderDriver(t *testing.T) {
	s := session(t)
	s.NoLimits = "symbol absent: driver 580.159.04 has no nvmlDeviceSetMemoryLimits_v1, which came with release 615"
	found := 0
	for _, g := range Groups() {
		if needs := unmet(s, g.Needs); needs == s.NoLimits {
			found++
			rows := s.tryGroup(context.Background(), g)
			if len(rows) != 1 || rows[0].Result != report.NotRun || rows[0].Observed != s.NoLimits {
				t.Errorf("group %s: %+v", g.Name, rows)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d groups about memory limits are left out, want 2", found)
	}
}

// Those of the list of questions for a real GPU: two of them are steps of their own.
func TestEighteenQuestions(t *testing.T) {
	if n := len(questions()) + 2; n != 18 {
		t.Errorf("%d questions", n)
	}
}
