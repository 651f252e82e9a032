// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var started = time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)

func TestMarkdown(t *testing.T) {
	r := Report{
		GPUs: "1 × NVIDIA H200", Started: started, Took: 191500 * time.Millisecond,
		Facts: []Fact{{"NVIDIA driver", "580.159.04, CUDA 13.0"}, {"Control groups", "v2"}},
		Tables: []Table{
			{Mode: "share", Rows: []Row{
				{
					What:     "pod with a share runs",
					Granted:  "3 GiB",
					Observed: "Running",
					Result:   Passed,
					Took:     1200 * time.Millisecond,
				},
				{What: "two programs", Observed: "507 | 508 kernels/s", Result: Seen},
			}},
			{Mode: "mps", Rows: []Row{
				{
					What:     "allocation beyond the cap",
					Granted:  "3072 MiB",
					Observed: "granted",
					Result:   Failed,
					Details:  "pod a\n```\nis not a client\n",
				},
				{What: "linked GPUs", Observed: "the machine has one GPU", Result: NotRun},
			}},
		},
		Afterwards: []string{"the cluster was taken down"},
	}
	want := `## 1 × NVIDIA H200

Of 3 checks 1 passed, 1 failed and 1 not run.

| | |
|---|---|
| Date | 2026-11-22 09:30 UTC |
| Time taken | 191.5 s |
| NVIDIA driver | 580.159.04, CUDA 13.0 |
| Control groups | v2 |

### share

| Check | Granted, or expected | Observed | Result | s |
|---|---|---|---|---|
| pod with a share runs | 3 GiB | Running | ok | 1.2 |
| two programs |  | 507 \| 508 kernels/s | seen |  |

### mps

| Check | Granted, or expected | Observed | Result | s |
|---|---|---|---|---|
| allocation beyond the cap | 3072 MiB | granted | **failed** |  |
| linked GPUs |  | the machine has one GPU | not run |  |

### Failures

mps: allocation beyond the cap

` + "```\npod a\nis not a client\n```" + `

### Afterwards

- the cluster was taken down
`
	if diff := cmp.Diff(want, r.Markdown()); diff != "" {
		t.Error(diff)
	}
}

func TestSimulatedSaysSo(t *testing.T) {
	text := Report{GPUs: "2 × NVIDIA H200", Simulated: true, Started: started}.Markdown()
	for _, part := range []string{
		"## 2 × NVIDIA H200, simulated\n", "**No GPU took part in this run.**", "Of 0 checks 0 passed and 0 failed.",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the report of a simulated run lacks %q:\n%s", part, text)
		}
	}
}

func TestCell(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"a pipe would end the cell", "a|b", `a\|b`},
		{"a line break would end the table", "a\n  b\tc", "a b c"},
		{"long texts are cut", strings.Repeat("ä", 200), strings.Repeat("ä", 159) + "…"},
		{"as long as may be", strings.Repeat("x", 160), strings.Repeat("x", 160)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := cell(tt.text); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestDetailsAreTheLastLines(t *testing.T) {
	var lines []string
	for range 100 {
		lines = append(lines, "line")
	}
	r := Report{
		GPUs: "x",
		Tables: []Table{
			{Mode: "m", Rows: []Row{{What: "w", Result: Failed, Details: strings.Join(lines, "\n") + "\nthe end\n"}}},
		},
	}
	text := r.Markdown()
	if n := strings.Count(text, "line\n"); n != maxDetails-1 || !strings.Contains(text, "the end\n```") {
		t.Errorf("%d lines and the end wanted, got %d:\n%s", maxDetails-1, n, text)
	}
}
