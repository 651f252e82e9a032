// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// tooDear is the work above which a pod keeps the scheduler too long.
const tooDear = 100 * time.Millisecond

// searched is a search on the nodes with these names.
func searched(t *testing.T, files, nodes []string, of kinds, seed uint64, tries int, stop bool) *found {
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
	server, err := newServer(t.Context(), files, nil, classesOf(all))
	if err != nil {
		t.Fatal(err)
	}
	s := &search{server: server, limits: newLimits(nil), targets: all, kinds: of, labels: labels, seed: seed,
		tries: tries, most: most}
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

// Where no policy bounds what pods ask for, each kind of dear pod is found that is known. So a search that
// finds none says something.
func TestFindsWhatNothingBounds(t *testing.T) {
	for name, test := range map[string]struct {
		node  string
		kinds string
	}{
		"requests":                           {"a100x8 share empty", "requests,amounts"},
		"requests, dynamic":                  {"a100x8 dynamic empty", "requests,amounts"},
		"instances on demand":                {"a100x8-mig exclusive empty", "requests,selectors"},
		"linked sets":                        {"dgx1 topology empty", "requests,amounts"},
		"claims":                             {"a100x8 share empty", "claims,amounts"},
		"alternatives":                       {"a100x16 share empty", "requests,alternatives,amounts"},
		"counts":                             {"a100x16 share empty", "counts,amounts"},
		"counts, half taken":                 {"a100x8-mig exclusive half taken", "counts"},
		"containers' resources":              {"a100x8 share empty", "containers"},
		"containers' resources, dynamic":     {"a100x8 dynamic empty", "containers"},
		"loops in selectors":                 {"a100x8 share empty", "loops"},
		"selectors that have to be compiled": {"a100x8 dynamic empty", "compiling,alternatives"},
		"requests beside shares elsewhere":   {"a100x8 share empty, 2000 shares elsewhere", "requests,amounts"},
	} {
		t.Run(name, func(t *testing.T) {
			f := searched(t, nil, []string{test.node}, strings.Split(test.kinds, ","), 1, 3000, true)
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
	f := searched(t, files, nodes, nil, 1, 1500, false)
	if f == nil {
		t.Fatal("no pod is admitted")
	}
	t.Logf("the dearest, on %s: %s; %s", f.target, f.cost, f.candidate)
	// By the count: a loaded machine takes longer.
	if f.cost.counted > tooDear {
		t.Errorf("on %s a pod is admitted that takes %s:\n%s", f.target, f.cost,
			shortened(f.candidate.manifests("dearest")))
	}
}
