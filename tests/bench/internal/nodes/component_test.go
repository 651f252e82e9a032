// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestSumOfMetrics(t *testing.T) {
	const text = `# TYPE pods counter
pods{event="ResourceSliceUpdate",queue="active"} 2
pods{event="ResourceSliceAdd",queue="backoff"} 3
pods{event="NodeAdd",queue="active"} 5
# TYPE waited histogram
waited_bucket{verb="GET",le="+Inf"} 4
waited_sum{verb="GET"} 1.5
waited_count{verb="GET"} 4
`
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	m := Metrics(families)
	for _, test := range []struct {
		name, label, part string
		want              float64
	}{
		{"pods", "event", "ResourceSlice", 5},
		{"pods", "", "", 10},
		{"waited", "", "", 1.5},
		{"absent", "", "", 0},
	} {
		if got := m.Sum(test.name, test.label, test.part); got != test.want {
			t.Errorf("the sum of %s with %q in %q is %v, want %v", test.name, test.part, test.label, got, test.want)
		}
	}
}
