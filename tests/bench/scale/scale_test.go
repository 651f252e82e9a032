// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
)

// That a claim fits where it should, and nowhere else, is what the benchmark's
// figures rest on; measureAllocator reports it.
func TestEveryContestantInEveryScenario(t *testing.T) {
	testneeds.DeviceNodes(t)
	_, ctx := ktesting.NewTestContext(t)
	f := newFleet(3, "../../../demo/machines", t.TempDir())
	installed, err := deviceclasses.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range contestants() {
		published, err := f.published(ctx, c)
		if err != nil {
			t.Fatalf("mode %s: %v", c.mode, err)
		}
		for _, s := range scenarios(30) {
			if !s.inMode(c) {
				continue
			}
			figures, err := measureAllocator(ctx, f.nodes, published, installed, c, s, s.state(published))
			if err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
			if got := len(figures.perNode); got != len(f.nodes)*len(figures.perPod) {
				t.Errorf("mode %s, %s: %d times for %d nodes in %d rounds", c.mode, s.name, got, len(f.nodes), len(figures.perPod))
			}
		}
	}
}

func TestTable(t *testing.T) {
	table := table{columns: []string{"share", noClaim}}
	table.set("first", "share", "1")
	table.set("second", noClaim, "2")
	table.aim("first", "≤ 3")
	var out strings.Builder
	if err := table.write(&out); err != nil {
		t.Fatal(err)
	}
	want := `| measure | share | no claim | target |
| --- | --- | --- | --- |
| first | 1 | – | ≤ 3 |
| second | – | 2 | – |
`
	if out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}
