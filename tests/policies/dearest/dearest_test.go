// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// tooDear is the work above which a pod keeps the scheduler too long.
const tooDear = 100 * time.Millisecond

// searched is a search on the nodes with these names.
func searched(t *testing.T, files, nodes []string, of kinds, seed uint64, tries int, stop bool,
	change ...func(*search)) *found {
	t.Helper()
	all, err := targets(t.Context(), "../testdata/machines",
		func(name string) bool { return slices.Contains(nodes, name) })
	if err != nil || len(all) != len(nodes) {
		t.Fatalf("nodes %v: %d of them, %v", nodes, len(all), err)
	}
	labels, err := labelsIn(files)
	if err != nil {
		t.Fatal(err)
	}
	server, err := newServer(t.Context(), files, classesOf(all))
	if err != nil {
		t.Fatal(err)
	}
	s := &search{server: server, limits: newLimits(), targets: all, kinds: of, labels: labels, seed: seed,
		tries: tries, most: tooDear * 6 / 5}
	for _, c := range change {
		c(s)
	}
	var dearest *found
	s.run(func(f *found) {
		if dearest == nil || f.cost.dearer(dearest.cost) {
			dearest = f
		}
		if stop && dearest.cost.took() > tooDear {
			s.tries = s.tried
		}
	})
	t.Logf("%d tries, %d admitted", s.tried, s.admittedCount)
	return dearest
}

func TestMain(m *testing.M) {
	// The garbage is the allocator's, as in main.
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// Where no policy bounds what pods ask for, each kind of dear pod is found that is known. So a search that
// finds none says something.
func TestFindsWhatNothingBounds(t *testing.T) {
	testneeds.Time(t)
	for name, test := range map[string]struct {
		node  string
		kinds string
		// seed is one of those with which the search finds it soon.
		seed uint64
	}{
		"requests":                           {"a100x8 share empty", "requests,amounts", 4},
		"requests, dynamic":                  {"a100x8 dynamic empty", "requests,amounts", 5},
		"instances on demand":                {"a100x8-mig exclusive empty", "requests,selectors", 4},
		"linked sets":                        {"dgx1 topology empty", "requests,amounts", 3},
		"claims":                             {"a100x8 share empty", "claims,amounts", 5},
		"alternatives":                       {"a100x16 share empty", "requests,alternatives,amounts", 5},
		"counts":                             {"a100x16 share empty", "counts,amounts", 2},
		"counts, half taken":                 {"a100x8-mig exclusive half taken", "counts", 3},
		"containers' resources":              {"a100x8 share empty", "containers", 3},
		"containers' resources, dynamic":     {"a100x8 dynamic empty", "containers", 3},
		"loops in selectors":                 {"a100x8 share empty", "loops", 2},
		"regular expressions":                {"a100x16 share empty", "strings", 2},
		"what selectors join":                {"a100x16 share empty", "written", 1},
		"selectors that have to be compiled": {"a100x8 dynamic empty", "compiling,alternatives", 6},
		"requests beside shares elsewhere":   {"a100x8 share empty, 2000 shares elsewhere", "requests,amounts", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := searched(t, nil, []string{test.node}, strings.Split(test.kinds, ","), test.seed, 3000, true)
			if f == nil || f.cost.took() < tooDear {
				t.Errorf("the dearest is %v", f)
			}
		})
	}
}

// The policies as they are shipped admit nothing that is too dear; a short search, of which `go run ./dearest`
// is the long form.
func TestNothingDearIsAdmitted(t *testing.T) {
	files, err := shippedPolicies("../testdata/deployments")
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{"a100x8 share empty", "a100x16 share half taken, 2000 shares elsewhere", "a100x8 dynamic empty",
		"dgx1 topology empty", "a100x8-mig exclusive empty", "a100x16 exclusive fragmented"}
	f := searched(t, files, nodes, nil, 1, 500, false)
	if f == nil {
		t.Fatal("no pod is admitted")
	}
	t.Logf("the dearest, on %s: %s; %s", f.target, f.cost, f.candidate)
	// By the count: a loaded machine takes longer. What is not counted takes much longer.
	if f.cost.counted > tooDear || f.cost.cpu > 3*tooDear {
		t.Errorf("on %s a pod is admitted that takes %s:\n%s", f.target, f.cost,
			shortened(f.candidate.manifests("dearest")))
	}
}

// gateBound is the most work that a pod may take on a node once it has left the gate of costly claims.
const gateBound = 200 * time.Millisecond

// Without any policy, the search of a node for a pod that leaves the gate of costly claims stays within the bound,
// whatever others hold there.
func TestNothingDearGoesFromTheGate(t *testing.T) {
	testneeds.Time(t)
	engine := scheduling.NewEngine(scheduling.ExpressionsMost)
	let := 0
	nodes := []string{"a100x8 share empty", "a100x16 share half taken", "a100x8 dynamic empty",
		"a100x8 dynamic half taken", "dgx1 topology empty", "a100x8-mig exclusive empty", "a100x16 exclusive fragmented",
		"a100x16 exclusive seven free"}
	f := searched(t, nil, nodes, kinds{"requests", "amounts", "counts", "alternatives", "claims"}, 1, 300, false,
		func(s *search) {
			s.most = gateBound * 6 / 5
			s.gate = func(on *target, claims []*resourceapi.ResourceClaim) bool {
				inTime, err := engine.EndsInTime(t.Context(), theNode(), on.slices, on.classes, claims)
				if err != nil {
					t.Fatal(err)
				}
				if inTime {
					let++
				}
				return inTime
			}
		})
	if f == nil || let == 0 {
		t.Fatalf("%d pods go from the gate, the dearest is %v", let, f)
	}
	t.Logf("%d pods go from the gate; the dearest, on %s: %s; %s", let, f.target, f.cost, f.candidate)
	if f.cost.counted > gateBound {
		t.Errorf("on %s a pod goes from the gate that takes %s:\n%s", f.target, f.cost,
			shortened(f.candidate.manifests("dearest")))
	}
}
