// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

const (
	pluginPort     = "8480"
	controllerPort = "8481"
)

// scraped are the metrics of a program, by name.
type scraped map[string]*dto.MetricFamily

// scrape reads what a pod of the driver shows to Prometheus.
func scrape(ctx context.Context, pod, port string) (scraped, error) {
	text, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).ProxyGet("http", pod, port, "metrics",
		nil).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("scrape pod %s: %w", pod, err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		return nil, fmt.Errorf("pod %s: %v %v", pod, problems, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

// value is the sum of the samples of a metric that have all the labels, given as "name=value";
// of a histogram, how often something was observed. found is how many there are.
func (s scraped) value(name string, labels ...string) (sum float64, found int) {
	for _, m := range s["gpushare_"+name].GetMetric() {
		has := map[string]bool{}
		for _, l := range m.GetLabel() {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		matches := true
		for _, l := range labels {
			matches = matches && has[l]
		}
		if !matches {
			continue
		}
		found++
		sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum, found
}

// shows waits until a node's plugin shows these values, by "metric label=value …"; -1 stands
// for none.
func shows(t *testing.T, node, when string, want map[string]float64) {
	t.Helper()
	plugin := cluster.Plugin(t, node)
	harness.Eventually(t, fmt.Sprintf("the metrics of node %s %s", node, when), func(ctx context.Context) error {
		metrics, err := scrape(ctx, plugin.Name, pluginPort)
		if err != nil {
			return err
		}
		got := map[string]float64{}
		for query := range want {
			words := strings.Fields(query)
			sum, found := metrics.value(words[0], words[1:]...)
			if found == 0 {
				sum = -1
			}
			got[query] = sum
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("they are %v, want %v", got, want)
		}
		return nil
	})
}

// The metrics of a node change as its claims come and go and as its GPUs fail.
func TestMetricsOfANode(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "kill")
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Share("gpu", "3Gi")))
	cluster.Publishes(t, "kill", harness.DevicesIn("share")...)
	const mib = 1 << 20
	// 3 of the 15 units of a V100's 16130 MiB.
	share, all := float64(16130*3/15*mib), float64(16130*mib)
	claims := "claim_memory_granted_bytes namespace=" + ns.Name
	shows(t, "kill", "before there are claims", map[string]float64{
		claims: -1, "gpu_memory_capacity_bytes gpu=0": all, "gpu_memory_granted_bytes gpu=0": 0,
		"claims_prepared mode=share": 0, "devices mode=share health=healthy": 4, "gpu_healthy": 4,
		"look_success": 1, "publish_behind_seconds": 0,
	})
	before, _ := mustScrape(t, cluster.Plugin(t, "kill").Name, pluginPort).value("claim_prepare_duration_seconds",
		"result=success")
	ns.Run(t, harness.Pod("first", "kill", harness.FromTemplate("three")),
		harness.Pod("second", "kill", harness.FromTemplate("three")))
	shows(t, "kill", "with two claims", map[string]float64{
		claims: 2 * share, claims + " pod=first gpu=0": share, "gpu_memory_granted_bytes gpu=0": 2 * share,
		"gpu_shares_granted gpu=0": 2, "gpu_memory_granted_bytes gpu=1": 0, "claims_prepared mode=share": 2,
		"claim_prepare_duration_seconds result=success": before + 2,
	})

	// What is broken is whole after the test, whatever becomes of it.
	cluster.ChangeMachine(t, "kill", func(*sim.Spec) {})
	cluster.Tool(t, "node", "fault", "kill", "gpu-0", "xid=79")
	shows(t, "kill", "with a GPU that failed", map[string]float64{
		"gpu_healthy gpu=0": 0, "gpu_healthy": 3, "gpu_unhealthy_info gpu=0 reason=xid-79": 1,
		"devices mode=share health=healthy": 3, "devices mode=share health=unhealthy": 1, claims: 2 * share,
	})
	cluster.Tool(t, "node", "fault", "kill", "gpu-0", "heal")
	shows(t, "kill", "when it has recovered", map[string]float64{"gpu_healthy": 4, "gpu_unhealthy_info": -1})

	ns.Delete(t, "first", "second")
	shows(t, "kill", "when the claims are gone", map[string]float64{
		claims: -1, "gpu_memory_granted_bytes gpu=0": 0, "claims_prepared mode=share": 0,
	})
	for path, want := range map[string]string{"readyz": "[+]kubelet ok", "healthz": "ok"} {
		answer, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).ProxyGet("http",
			cluster.Plugin(t, "kill").Name, pluginPort, path, nil).DoRaw(t.Context())
		if err != nil || !strings.Contains(string(answer), want) {
			t.Errorf("/%s: %q %v, want %q", path, answer, err, want)
		}
	}
}

func mustScrape(t *testing.T, pod, port string) scraped {
	t.Helper()
	metrics, err := scrape(t.Context(), pod, port)
	expect.NoError(t, err)
	return metrics
}

// The controller shows which of its parts work, and how late it was for legacy pods.
func TestMetricsOfTheController(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "fill")
	cluster.Share(t, v1alpha1.ControllerName)
	ns := cluster.Namespace(t)
	ns.Run(t, harness.On("fill", harness.Asking("mem 1"))...)
	harness.Eventually(t, "a controller to show what it does", func(ctx context.Context) error {
		pods, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).List(ctx,
			metav1.ListOptions{LabelSelector: harness.ControllerSelector})
		if err != nil {
			return err
		}
		var told []string
		for _, pod := range pods.Items {
			metrics, err := scrape(ctx, pod.Name, controllerPort)
			if err != nil {
				told = append(told, err.Error())
				continue
			}
			loops, _ := metrics.value("controller_loop_ready")
			templates, _ := metrics.value("template_lag_seconds")
			annotations, _ := metrics.value("annotation_lag_seconds")
			if loops >= 7 && templates >= 1 && annotations >= 1 {
				return nil
			}
			told = append(told, fmt.Sprintf("%s: %v loops work, %v templates, %v annotations", pod.Name, loops, templates,
				annotations))
		}
		return fmt.Errorf("none does: %s", strings.Join(told, "; "))
	})
}
