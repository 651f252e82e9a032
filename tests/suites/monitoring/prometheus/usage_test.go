// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
	"go.yaml.in/yaml/v3"
)

const usageQueries = "../../../../pkg/inspect/series/queries.yaml"

// scripted is a day of pods, in bytes. p has 8 for all of it, of two plugins for some minutes, and holds 2; from noon
// on the plugin tells of a moment when it held 7, which was in no scrape. q has 4 for the last six hours, and never
// uses them. r has 3 for two hours in the night, while nobody looks at what its GPU is used for. All have a sample at
// the beginning, which the day does not include: the engine's storage takes none that is older than its first.
const scripted = `load 1m
  gpushare_claim_memory_granted_bytes{instance="old",node="n1",namespace="a",pod="p",claim="p-gpu",gpu="0",uuid="GPU-0"} 8x605
  gpushare_claim_memory_granted_bytes{instance="new",node="n1",namespace="a",pod="p",claim="p-gpu",gpu="0",uuid="GPU-0"} 8 stale _x599 8x839
  gpushare_claim_memory_used_bytes{instance="old",node="n1",namespace="a",pod="p",container="main",claim="p-gpu",gpu="0",uuid="GPU-0"} 2x605
  gpushare_claim_memory_used_bytes{instance="new",node="n1",namespace="a",pod="p",container="main",claim="p-gpu",gpu="0",uuid="GPU-0"} 2 stale _x599 2x839
  gpushare_claim_memory_peak_bytes{instance="new",node="n1",namespace="a",pod="p",container="main",claim="p-gpu",gpu="0",uuid="GPU-0"} 2 stale _x599 2x118 7x720
  gpushare_gpu_memory_used_bytes{node="n1",gpu="0",uuid="GPU-0"} 3x1440
  gpushare_claim_memory_granted_bytes{node="n1",namespace="a",pod="q",claim="q-gpu",gpu="0",uuid="GPU-0"} 4 stale _x1079 4x359
  gpushare_claim_memory_granted_bytes{node="n2",namespace="b",pod="r",claim="r-gpu",gpu="0",uuid="GPU-1"} 3 stale _x59 3x119 stale
`

// The queries of `kubectl inspect cgpu usage` have the answers that the script has.
func TestQueriesOfUsage(t *testing.T) {
	const (
		p    = `{namespace="a",pod="p",claim="p-gpu",uuid="GPU-0"} `
		main = `{namespace="a",pod="p",container="main",claim="p-gpu",uuid="GPU-0"} `
		q    = `{namespace="a",pod="q",claim="q-gpu",uuid="GPU-0"} `
		r    = `{namespace="b",pod="r",claim="r-gpu",uuid="GPU-1"} `
	)
	content, err := os.ReadFile(usageQueries)
	if err != nil {
		t.Fatal(err)
	}
	var queries map[string]string
	if err := yaml.Unmarshal(content, &queries); err != nil {
		t.Fatal(err)
	}
	wants := map[string][]string{
		"grantedMost":  {p + "8", q + "4", r + "3"},
		"grantedSum":   {p + "11520", q + "1440", r + "360"},
		"grantedTimes": {p + "1440", q + "360", r + "120"},
		"grantedAge":   {p + "86340", q + "21540", r + "82740"},
		"seenTimes":    {p + "1440", q + "360"},
		"usedMost":     {main + "2"},
		"usedPeak":     {main + "7"},
		"usedP99":      {main + "2"},
		"usedSum":      {main + "2880"},
	}
	for name, query := range queries {
		t.Run(name, func(t *testing.T) {
			if wants[name] == nil {
				t.Fatal("nothing is scripted for it")
			}
			for where, pods := range map[string]string{"": "", `namespace="a"`: `namespace="a"`} {
				var want []string
				for _, line := range wants[name] {
					if strings.Contains(line, pods) {
						want = append(want, line)
					}
				}
				asked := strings.NewReplacer("$where", where, "$since", "1d", "$step", "1m", "\n", " ").Replace(query)
				promqltest.RunTest(t, scripted+"\neval instant at 1440m "+asked+"\n  "+strings.Join(want, "\n  ")+"\n",
					promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery))
			}
		})
	}
}
