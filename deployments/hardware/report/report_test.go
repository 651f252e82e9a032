// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// events are what test2json writes of a program that was killed in its last test; T, S and C are names below.
var events = strings.NewReplacer("T/", "TestHardware/mode_switch/", "S/", "TestHardware/mode_switch/a_share/").Replace(
	`{"Action":"start"}
{"Action":"run","Test":"TestHardware"}
{"Action":"run","Test":"TestHardware/mode_switch"}
{"Action":"run","Test":"T/the_node_changes"}
{"Action":"pass","Test":"T/the_node_changes","Elapsed":1.5}
{"Action":"run","Test":"TestHardware/mode_switch/a_share"}
{"Action":"run","Test":"S/pod_with_nvidia.com/gpu"}
{"Action":"output","Test":"S/pod_with_nvidia.com/gpu","Output":"=== RUN   TestHardware/x\n"}
{"Action":"output","Test":"S/pod_with_nvidia.com/gpu","Output":"    step_test.go:12: 1, want 1\n"}
{"Action":"attr","Test":"S/pod_with_nvidia.com/gpu","Key":"waited","Value":"1.0s for pod"}
{"Action":"pass","Test":"S/pod_with_nvidia.com/gpu","Elapsed":2}
{"Action":"run","Test":"S/throughput#01"}
{"Action":"output","Test":"S/throughput#01","Output":"    step_test.go:12: 500 kernels/s\n"}
{"Action":"attr","Test":"S/throughput#01","Key":"seen","Value":""}
{"Action":"pass","Test":"S/throughput#01"}
{"Action":"run","Test":"S/pods"}
{"Action":"output","Test":"S/pods","Output":"    step_test.go:12: 2, want 1\n"}
{"Action":"fail","Test":"S/pods"}
{"Action":"output","Test":"TestHardware/mode_switch/a_share","Output":"    pods_test.go:13: --- namespace a\n"}
{"Action":"fail","Test":"TestHardware/mode_switch/a_share","Elapsed":3}
{"Action":"run","Test":"T/a_limit"}
{"Action":"output","Test":"T/a_limit","Output":"    pods_test.go:12: waited for pod a to run: it is Pending\n"}
{"Action":"fail","Test":"T/a_limit","Elapsed":3}
{"Action":"fail","Test":"TestHardware/mode_switch"}
{"Action":"run","Test":"TestHardware/topology"}
{"Action":"output","Test":"TestHardware/topology","Output":"    step_test.go:5: the machine has one GPU\n"}
{"Action":"skip","Test":"TestHardware/topology","Elapsed":1}
{"Action":"run","Test":"TestHardware/dynamic"}
{"Action":"run","Test":"TestHardware/dynamic/it_hangs"}
{"Action":"output","Output":"signal: killed\n"}
`)

func TestRead(t *testing.T) {
	var told []string
	got, err := Read(strings.NewReader(events), func(line string) { told = append(told, line) })
	if err != nil {
		t.Fatal(err)
	}
	want := []Table{
		{Mode: "mode switch", Rows: []Row{
			{What: "the node changes", Result: Passed, Took: 1500 * time.Millisecond},
			{What: "pod with nvidia.com/gpu", Observed: "1, want 1", Result: Passed, Took: 2 * time.Second},
			{What: "throughput", Observed: "500 kernels/s", Result: Seen},
			{What: "pods", Observed: "2, want 1", Result: Failed,
				Details: "    step_test.go:12: 2, want 1\n    pods_test.go:13: --- namespace a\n"},
			{What: "a limit", Observed: "waited for pod a to run: it is Pending", Result: Failed, Took: 3 * time.Second,
				Details: "    pods_test.go:12: waited for pod a to run: it is Pending\n"},
		}},
		{Mode: "topology", Rows: []Row{{What: "topology", Observed: "the machine has one GPU", Result: NotRun}}},
		{Mode: "dynamic", Rows: []Row{{What: "it hangs", Result: Failed, Details: "signal: killed\n",
			Observed: "it did not end, and no other was tried, as when the time of the run is over"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(told) != 7 || told[1] != "  a share" || told[2] != "    FAILED pods: 2, want 1" {
		t.Errorf("told %q", told)
	}
}

// A program that cannot find its cluster runs no test, and says why. One whose cleanup fails has passed each step.
func TestReadOfFailuresOfNoStep(t *testing.T) {
	for said, want := range map[string]string{
		`{"Action":"output","Output":"hardware tests: no cluster\n"}`: "none began: hardware tests: no cluster\n",
		`{"Action":"run","Test":"TestHardware"}
{"Action":"output","Test":"TestHardware","Output":"    a_test.go:1: the label stays\n"}
{"Action":"fail","Test":"TestHardware"}`: "the label stays",
	} {
		got, err := Read(strings.NewReader(said), func(string) {})
		if err != nil || len(got) != 1 || got[0].Rows[0].Observed != want || got[0].Rows[0].Result != Failed {
			t.Errorf("%+v (%v), want %q", got, err, want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	r := Report{
		Title: "1 × NVIDIA H200", Simulated: true, Started: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC),
		Tables: []Table{
			{Mode: "share", Rows: []Row{
				{What: "pod with\n a share", Observed: "Running", Result: Passed, Took: 1200 * time.Millisecond},
				{What: "two programs", Observed: "507 | 508 kernels/s", Result: Seen, Took: time.Millisecond},
			}},
			{Mode: "mps", Rows: []Row{
				{What: "allocation", Observed: strings.Repeat("ä", 300), Result: Failed,
					Details: strings.Repeat("line\n", 100) + "```\nis not a client\n"},
				{What: "linked GPUs", Observed: "the machine has one GPU", Result: NotRun},
			}},
		},
		Afterwards: []string{"the cluster was taken down"},
	}
	want := `## 1 × NVIDIA H200, simulated

` + simulated + `

Of 3 checks 1 passed, 1 failed and 1 were not run. 2026-11-22 09:30 UTC.

### share

| Check | Observed | Result | s |
|---|---|---|---|
| pod with a share | Running | ok | 1.2 |
| two programs | 507 \| 508 kernels/s | seen |  |

### mps

| Check | Observed | Result | s |
|---|---|---|---|
| allocation | ` + strings.Repeat("ä", 199) + `… | **failed** |  |
| linked GPUs | the machine has one GPU | not run |  |

### Failures

mps: allocation

` + "```\n" + strings.Repeat("line\n", 58) + "'''\nis not a client\n```" + `

### Afterwards

- the cluster was taken down
`
	if diff := cmp.Diff(want, r.Markdown()); diff != "" {
		t.Error(diff)
	}
}
