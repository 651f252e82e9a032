// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestMarkdown(t *testing.T) {
	r := Report{
		Title: "1 × NVIDIA H200", Simulated: true, Started: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC),
		Failures: "--- FAIL: TestHardware\n```\nis not a client\n" + strings.Repeat("line\n", 500), Trying: "a hang",
		Afterwards: []string{"the cluster was\n taken down"},
	}
	r.Add("share", Row{What: "pod with\n a share", Observed: "Running", Result: Passed, Took: 1200 * time.Millisecond})
	r.Add("share", Row{What: "two programs", Observed: "507 | 508 kernels/s", Result: Seen})
	r.Add("core_mem", Row{What: "allocation", Observed: strings.Repeat("ä", 300), Result: Failed})
	r.Add("core_mem", Row{What: "linked GPUs", Observed: "the machine has one GPU", Result: NotRun})
	r.End(errors.New("exit status 2"))
	want := `## 1 × NVIDIA H200, simulated

` + simulated + `

Of 4 checks 1 passed, 2 failed and 1 were not run. 2026-11-22 09:30 UTC.

### share

| Check | Observed | Result | s |
|---|---|---|---|
| pod with a share | Running | ok | 1.2 |
| two programs | 507 \| 508 kernels/s | seen |  |

### core_mem

| Check | Observed | Result | s |
|---|---|---|---|
| allocation | ` + strings.Repeat("ä", 199) + `… | **failed** |  |
| linked GPUs | the machine has one GPU | not run |  |

### tests

| Check | Observed | Result | s |
|---|---|---|---|
| a hang | it did not end, and no other was tried, as when the time of the run is over | **failed** |  |

### Failures

` + "```\n--- FAIL: TestHardware\n'''\nis not a client" + strings.Repeat("\nline", 397) + "\n```" + `

### Afterwards

- the cluster was taken down
`
	expect.Equal(t, want, r.Markdown(), "Markdown")
}

// Tests that fail beside their checks, as those that find no cluster, have failed. So have no others.
func TestEnd(t *testing.T) {
	ended := errors.New("exit status 1")
	for name, tt := range map[string]struct {
		row  Row
		err  error
		want int
	}{
		"all passed":                 {Row{Result: Passed}, nil, 0},
		"a check failed":             {Row{Result: Failed}, ended, 1},
		"what is around them failed": {Row{Result: Passed}, ended, 1},
	} {
		r := Report{Failures: "no cluster"}
		r.Add("share", tt.row)
		r.End(tt.err)
		if got := r.Count(Failed); got != tt.want {
			t.Errorf("%s: %d failed, want %d: %+v", name, got, tt.want, r.Tables)
		}
	}
}
