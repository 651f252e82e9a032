// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// events are what test2json writes, of a program that was killed in its last test.
const events = `{"Action":"start"}
{"Action":"run","Test":"TestHardware"}
{"Action":"attr","Test":"TestHardware","Key":"fact","Value":"GPU 0\tNVIDIA H200, 143771 MiB"}
{"Action":"run","Test":"TestHardware/core_mem"}
{"Action":"attr","Test":"TestHardware/core_mem","Key":"table","Value":"core_mem"}
{"Action":"run","Test":"TestHardware/core_mem/the_node_changes"}
{"Action":"pass","Test":"TestHardware/core_mem/the_node_changes","Elapsed":1.5}
{"Action":"run","Test":"TestHardware/core_mem/nvidia.com/gpu"}
{"Action":"attr","Test":"TestHardware/core_mem/nvidia.com/gpu","Key":"row","Value":"{\"What\":\"pod\",\"Granted\":\"1\",\"Observed\":\"1\",\"Result\":\"ok\"}"}
{"Action":"attr","Test":"TestHardware/core_mem/nvidia.com/gpu","Key":"waited","Value":"1.0s for pod"}
{"Action":"pass","Test":"TestHardware/core_mem/nvidia.com/gpu","Elapsed":2}
{"Action":"run","Test":"TestHardware/core_mem/a_limit"}
{"Action":"output","Test":"TestHardware/core_mem/a_limit","Output":"=== RUN   TestHardware/core_mem/a_limit\n"}
{"Action":"output","Test":"TestHardware/core_mem/a_limit","Output":"    pods_test.go:12: waited for pod a to run: it is Pending\n"}
{"Action":"output","Test":"TestHardware/core_mem/a_limit","Output":"    pods_test.go:13: --- namespace a\n"}
{"Action":"fail","Test":"TestHardware/core_mem/a_limit","Elapsed":3}
{"Action":"run","Test":"TestHardware/core_mem/a_row"}
{"Action":"attr","Test":"TestHardware/core_mem/a_row","Key":"row","Value":"{\"What\":\"pods\",\"Granted\":\"1\",\"Observed\":\"2\",\"Result\":\"**failed**\"}"}
{"Action":"output","Test":"TestHardware/core_mem/a_row","Output":"    x_test.go:1: pods: 2, want 1\n"}
{"Action":"fail","Test":"TestHardware/core_mem/a_row","Elapsed":3}
{"Action":"fail","Test":"TestHardware/core_mem"}
{"Action":"run","Test":"TestHardware/topology"}
{"Action":"run","Test":"TestHardware/topology/questions"}
{"Action":"run","Test":"TestHardware/topology/questions/who_counts"}
{"Action":"pass","Test":"TestHardware/topology/questions/who_counts"}
{"Action":"attr","Test":"TestHardware/topology/questions","Key":"row","Value":"{\"What\":\"all of topology\",\"Observed\":\"one GPU\",\"Result\":\"not run\"}"}
{"Action":"skip","Test":"TestHardware/topology/questions"}
{"Action":"run","Test":"TestHardware/dynamic"}
{"Action":"run","Test":"TestHardware/dynamic/it_hangs"}
{"Action":"output","Output":"signal: killed\n"}
{"Action":"fail"}
`

func TestRead(t *testing.T) {
	var told []string
	got, err := Read(strings.NewReader(events), func(line string) { told = append(told, line) })
	if err != nil {
		t.Fatal(err)
	}
	const said = "    pods_test.go:12: waited for pod a to run: it is Pending\n    pods_test.go:13: --- namespace a\n"
	want := Tests{
		Facts: []Fact{{"GPU 0", "NVIDIA H200, 143771 MiB"}},
		Tables: []Table{
			{Mode: "core_mem", Rows: []Row{
				{What: "the node changes", Result: Passed, Took: 1500 * time.Millisecond},
				{What: "pod", Granted: "1", Observed: "1", Result: Passed},
				{What: "a limit", Observed: "waited for pod a to run: it is Pending", Result: Failed, Details: said,
					Took: 3 * time.Second},
				{What: "pods", Granted: "1", Observed: "2", Result: Failed, Details: "    x_test.go:1: pods: 2, want 1\n"},
			}},
			{Mode: "topology", Rows: []Row{{What: "who counts", Result: Passed},
				{What: "all of topology", Observed: "one GPU", Result: NotRun}}},
			{Mode: "dynamic", Rows: []Row{{What: "it hangs: it did not end", Result: Failed}}},
			{Mode: "what follows", Rows: []Row{{What: "all tables that are not here", Result: NotRun,
				Observed: "the tests were ended, as when the time of the run is over"}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(told) != 10 || told[2] != "  a limit" || told[3] != "    FAILED waited for pod a to run: it is Pending" {
		t.Errorf("told %q", told)
	}
}

// A program that cannot find its cluster runs no test, and says why.
func TestReadOfNoTests(t *testing.T) {
	const said = `{"Action":"output","Output":"hardware tests: no cluster\n"}`
	got, err := Read(strings.NewReader(said), func(string) {})
	if err != nil || len(got.Tables) != 1 ||
		!strings.Contains(got.Tables[0].Rows[0].Observed, "no cluster") ||
		got.Tables[0].Rows[0].Result != Failed {
		t.Errorf("%+v (%v)", got, err)
	}
}
