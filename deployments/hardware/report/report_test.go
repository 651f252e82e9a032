// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// events are what test2json writes of a program that was killed in its last test.
const events = `{"Action":"start"}
{"Action":"run","Test":"TestHardware"}
{"Action":"run","Test":"TestHardware/mode_switch"}
{"Action":"run","Test":"TestHardware/mode_switch/the_node_changes"}
{"Action":"pass","Test":"TestHardware/mode_switch/the_node_changes","Elapsed":1.5}
{"Action":"run","Test":"TestHardware/mode_switch/nvidia.com/gpu"}
{"Action":"attr","Test":"TestHardware/mode_switch/nvidia.com/gpu","Key":"row","Value":"{\"What\":\"pod\",\"Granted\":\"1\",\"Observed\":\"1\",\"Result\":\"ok\"}"}
{"Action":"attr","Test":"TestHardware/mode_switch/nvidia.com/gpu","Key":"waited","Value":"1.0s for pod"}
{"Action":"pass","Test":"TestHardware/mode_switch/nvidia.com/gpu","Elapsed":2}
{"Action":"run","Test":"TestHardware/mode_switch/a_limit"}
{"Action":"output","Test":"TestHardware/mode_switch/a_limit","Output":"=== RUN   TestHardware/mode_switch/a_limit\n"}
{"Action":"output","Test":"TestHardware/mode_switch/a_limit","Output":"    pods_test.go:12: waited for pod a to run: it is Pending\n"}
{"Action":"output","Test":"TestHardware/mode_switch/a_limit","Output":"    pods_test.go:13: --- namespace a\n"}
{"Action":"fail","Test":"TestHardware/mode_switch/a_limit","Elapsed":3}
{"Action":"run","Test":"TestHardware/mode_switch/a_row"}
{"Action":"attr","Test":"TestHardware/mode_switch/a_row","Key":"row","Value":"{\"What\":\"pods\",\"Granted\":\"1\",\"Observed\":\"2\",\"Result\":\"**failed**\"}"}
{"Action":"output","Test":"TestHardware/mode_switch/a_row","Output":"    x_test.go:1: pods: 2, want 1\n"}
{"Action":"fail","Test":"TestHardware/mode_switch/a_row","Elapsed":3}
{"Action":"fail","Test":"TestHardware/mode_switch"}
{"Action":"run","Test":"TestHardware/topology"}
{"Action":"output","Test":"TestHardware/topology","Output":"    step_test.go:5: the machine has one GPU\n"}
{"Action":"skip","Test":"TestHardware/topology","Elapsed":1}
{"Action":"run","Test":"TestHardware/dynamic"}
{"Action":"run","Test":"TestHardware/dynamic/questions"}
{"Action":"run","Test":"TestHardware/dynamic/questions/who_counts"}
{"Action":"pass","Test":"TestHardware/dynamic/questions/who_counts"}
{"Action":"run","Test":"TestHardware/dynamic/questions/it_hangs"}
{"Action":"output","Output":"signal: killed\n"}
`

func TestRead(t *testing.T) {
	var told []string
	got, err := Read(strings.NewReader(events), func(line string) { told = append(told, line) })
	if err != nil {
		t.Fatal(err)
	}
	const said = "    pods_test.go:12: waited for pod a to run: it is Pending\n    pods_test.go:13: --- namespace a\n"
	want := []Table{
		{Mode: "mode switch", Rows: []Row{
			{What: "the node changes", Result: Passed, Took: 1500 * time.Millisecond},
			{What: "pod", Granted: "1", Observed: "1", Result: Passed},
			{What: "a limit", Observed: "waited for pod a to run: it is Pending", Result: Failed, Details: said,
				Took: 3 * time.Second},
			{What: "pods", Granted: "1", Observed: "2", Result: Failed, Details: "    x_test.go:1: pods: 2, want 1\n"},
		}},
		{Mode: "topology", Rows: []Row{{What: "all of topology", Observed: "the machine has one GPU", Result: NotRun}}},
		{Mode: "dynamic", Rows: []Row{{What: "questions/who counts", Result: Passed},
			{What: "questions/it hangs", Observed: "it did not end", Result: Failed,
				Details: "test.go:0: it did not end\nsignal: killed\n"}}},
		{Mode: "what follows", Rows: []Row{{What: "all tables that are not here", Result: NotRun,
			Observed: "the tests were ended, as when the time of the run is over"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(told) != 10 || told[2] != "  a limit" ||
		told[3] != "    FAILED a limit: waited for pod a to run: it is Pending" {
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
		GPUs: "1 × NVIDIA H200", Simulated: true, Started: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC),
		Tables: []Table{
			{Mode: "share", Rows: []Row{
				{What: "pod with a share runs", Granted: "3\n GiB", Observed: "Running", Result: Passed, Took: 1200 * time.Millisecond},
				{What: "two programs", Observed: "507 | 508 kernels/s", Result: Seen},
			}},
			{Mode: "mps", Rows: []Row{
				{What: "allocation", Granted: "3072 MiB", Observed: strings.Repeat("ä", 200), Result: Failed,
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

| Check | Granted, or expected | Observed | Result | s |
|---|---|---|---|---|
| pod with a share runs | 3 GiB | Running | ok | 1.2 |
| two programs |  | 507 \| 508 kernels/s | seen |  |

### mps

| Check | Granted, or expected | Observed | Result | s |
|---|---|---|---|---|
| allocation | 3072 MiB | ` + strings.Repeat("ä", 159) + `… | **failed** |  |
| linked GPUs |  | the machine has one GPU | not run |  |

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
