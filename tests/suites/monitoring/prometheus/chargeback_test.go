// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
)

const chargeback = "../../../../docs/cost.md"

// charged is a day until midnight: namespace a had 4 GiB of V100s for all of it, by a claim of two containers, and b 10
// GiB of a T4 for six hours, the last. All have a sample at the beginning, which the day does not include.
const charged = `load 1m
  namespace_model:gpushare_granted_gib:sum{namespace="a",model="V100"} 4x1440
  namespace_model:gpushare_granted_gib:sum{namespace="b",model="T4"} 10 stale _x1079 10x359
  namespace:gpushare_idle_gib:sum{namespace="a"} 1x1440
  gpu_gib_hour:price{model="V100"} 0.5x1440
  gpu_gib_hour:price{model="T4"} 0.25x1440
  gpushare_gpu_info{gpu="0",uuid="GPU-0",model="V100"} 1x1440
  gpushare_gpu_info{gpu="0",uuid="GPU-1",model="T4"} 1x1440
  gpushare_claim_memory_granted_bytes{namespace="a",pod="p",container="main",claim="c",gpu="0",uuid="GPU-0"} 1073741824x1440
  gpushare_claim_memory_granted_bytes{namespace="a",pod="p",container="side",claim="c",gpu="0",uuid="GPU-0"} 3221225472x1440
  gpushare_claim_memory_granted_bytes{namespace="b",pod="q",claim="d",gpu="0",uuid="GPU-1"} 10737418240 stale _x1079 10737418240x359
`

// The page's queries have the amounts of the day that was scripted, and its prices are rules.
func TestChargeback(t *testing.T) {
	content, err := os.ReadFile(chargeback)
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	queries := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|.*`(sum_over_time[^`]+)` \\|$")
	for _, found := range row.FindAllStringSubmatch(page, -1) {
		queries[found[1]] = found[2]
	}
	queries["ResourceId"] = block(t, page, "promql")
	wants := map[string][]string{
		"ConsumedQuantity": {`{namespace="a",model="V100"} 96`, `{namespace="b",model="T4"} 60`},
		"BilledCost":       {`{namespace="a",model="V100"} 48`, `{namespace="b",model="T4"} 15`},
		"Tags":             {`{namespace="a"} 24`},
		"ResourceId":       {`{namespace="a",claim="c",model="V100"} 96`, `{namespace="b",claim="d",model="T4"} 60`},
	}
	if len(queries) != len(wants) {
		t.Errorf("%s has the queries %v", chargeback, queries)
	}
	for column, want := range wants {
		t.Run(column, func(t *testing.T) {
			query := strings.Join(strings.Fields(queries[column]), " ")
			promqltest.RunTest(t, charged+"\neval instant at 1440m "+query+"\n  "+strings.Join(want, "\n  ")+"\n",
				promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery))
		})
	}
	prices := filepath.Join(t.TempDir(), "prices.yaml")
	if err := os.WriteFile(prices, []byte(block(t, page, "yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), promtool(t), "check", "rules", "--lint=all", "--lint-fatal",
		prices).CombinedOutput(); err != nil {
		t.Errorf("the prices of %s: %v\n%s", chargeback, err, output)
	}
}

// block is a page's only block of code in a language.
func block(t *testing.T, page, language string) string {
	t.Helper()
	parts := strings.Split(page, "```"+language+"\n")
	if len(parts) != 2 {
		t.Fatalf("the page has %d blocks of %s", len(parts)-1, language)
	}
	text, _, _ := strings.Cut(parts[1], "```")
	return text
}
