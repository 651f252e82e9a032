// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
)

// partitioned is a node with a whole GPU, and one in MIG mode with two instances, which is
// unhealthy. One claim has both instances.
const partitioned = `load 1m
  gpushare_gpu_info{node="n1",gpu="0",uuid="GPU-0",model="T4"} 1
  gpushare_gpu_info{node="n1",gpu="1",uuid="GPU-1",model="A100"} 1
  gpushare_gpu_info{node="n1",gpu="1",uuid="MIG-1",model="A100-MIG-3g.40gb"} 1
  gpushare_gpu_info{node="n1",gpu="1",uuid="MIG-2",model="A100-MIG-3g.40gb"} 1
  gpushare_gpu_healthy{node="n1",gpu="0",uuid="GPU-0"} 1
  gpushare_gpu_healthy{node="n1",gpu="1",uuid="GPU-1"} 0
  gpushare_gpu_healthy{node="n1",gpu="1",uuid="MIG-1"} 0
  gpushare_gpu_healthy{node="n1",gpu="1",uuid="MIG-2"} 0
  gpushare_claim_memory_granted_bytes{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-1"} 40
  gpushare_claim_memory_granted_bytes{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-2"} 40
  gpushare_claim_memory_used_bytes{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-1"} 3
  gpushare_claim_memory_used_bytes{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-2"} 4
  gpushare_claim_memory_peak_bytes{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-1"} 4
  gpushare_claim_memory_peak_bytes{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-2"} 5
`

// A GPU in MIG mode is one GPU, and a claim has the memory of all its instances.
func TestDashboardOfPartitionedGPUs(t *testing.T) {
	all := queries(t)
	for where, want := range map[string][]string{
		`panel 3 "GPUs", query A`:           {"{} 2"},
		`panel 4 "Unhealthy GPUs", query A`: {"{} 1"},
		`panel 12 "Nodes", query A`:         {`{node="n1"} 2`},
		`panel 25 "Claims", query A`: {`{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-1"} 40`,
			`{node="n1",namespace="a",pod="p",claim="c",gpu="1",uuid="MIG-2"} 40`},
		`panel 27 "Memory granted by namespace", query A`:      {`{namespace="a"} 80`},
		`panel 28 "Memory used by pod, and its peak", query A`: {`{namespace="a",pod="p"} 7`},
		`panel 28 "Memory used by pod, and its peak", query B`: {`{namespace="a",pod="p"} 9`},
	} {
		t.Run(where, func(t *testing.T) {
			query := strings.NewReplacer("$node", "n1", "$namespace", "a").Replace(all[where])
			promqltest.RunTest(t, partitioned+"\neval instant at 1m "+query+"\n  "+strings.Join(want, "\n  ")+"\n",
				promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery))
		})
	}
}
