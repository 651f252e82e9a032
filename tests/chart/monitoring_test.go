// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"slices"
	"strings"
	"testing"
)

const monitoringDir = checkout + "/deployments/monitoring"

// What a monitor selects and asks is what the driver's objects have; the ports are those of
// the settings.
func TestMonitors(t *testing.T) {
	const common = `
  namespace: watch
  additionalLabels: {release: prometheus}
  interval: 15s
  metricRelabelings: [{action: drop, regex: go_.*, sourceLabels: [__name__]}]
  relabelings: [{targetLabel: cluster, replacement: c1}]
kubeletPlugin: {settings: {METRICS_ADDRESS: "0.0.0.0:9480"}}
`
	metadata := `{name: dra-driver-gpushare, namespace: watch,
		labels: {app.kubernetes.io/name: dra-driver-gpushare, release: prometheus}}`
	endpoint := `path: /metrics, honorLabels: true, interval: 15s,
		metricRelabelings: [{action: drop, regex: go_.*, sourceLabels: [__name__]}]`
	labels := `{sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node},
		{action: labeldrop, regex: pod|container|endpoint|service}, {targetLabel: cluster, replacement: c1}`
	component := "__meta_kubernetes_pod_label_app_kubernetes_io_component"
	for values, want := range map[string]map[string]string{
		"serviceMonitor:\n  enabled: true": {
			"ServiceMonitor watch/dra-driver-gpushare": `{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor,
				metadata: ` + metadata + `, spec: {jobLabel: app.kubernetes.io/component,
				namespaceSelector: {matchNames: [gpus]}, selector: {matchLabels: {app.kubernetes.io/name: dra-driver-gpushare}},
				endpoints: [{port: metrics, ` + endpoint + `, relabelings: [` + labels + `]}]}}`,
			"Service gpus/gpu-kubelet-plugin-metrics": `{apiVersion: v1, kind: Service,
				metadata: {name: gpu-kubelet-plugin-metrics, namespace: gpus, labels:
				{app.kubernetes.io/name: dra-driver-gpushare, app.kubernetes.io/component: gpu-kubelet-plugin}},
				spec: {clusterIP: None, selector: {app.kubernetes.io/component: gpu-kubelet-plugin},
				ports: [{name: metrics, port: 9480, targetPort: 9480}]}}`,
			"Service gpus/gpu-compat-controller-metrics": `{apiVersion: v1, kind: Service,
				metadata: {name: gpu-compat-controller-metrics, namespace: gpus, labels:
				{app.kubernetes.io/name: dra-driver-gpushare, app.kubernetes.io/component: gpu-compat-controller}},
				spec: {clusterIP: None, selector: {app.kubernetes.io/component: gpu-compat-controller},
				ports: [{name: metrics, port: 8481, targetPort: 8481}]}}`,
		},
		"podMonitor:\n  enabled: true": {
			"PodMonitor watch/dra-driver-gpushare": `{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor,
				metadata: ` + metadata + `, spec: {jobLabel: app.kubernetes.io/component,
				namespaceSelector: {matchNames: [gpus]}, selector: {matchExpressions: [{key: app.kubernetes.io/component,
				operator: In, values: [gpu-kubelet-plugin, gpu-compat-controller]}]},
				podMetricsEndpoints: [{` + endpoint + `, relabelings: [
				{sourceLabels: [__meta_kubernetes_pod_ip], targetLabel: __address__},
				{sourceLabels: [__meta_kubernetes_pod_ip], regex: "(.*:.*)", replacement: "[$1]", targetLabel: __address__},
				{sourceLabels: [` + component + `, __address__], regex: gpu-kubelet-plugin;(.+), replacement: "$1:9480",
				targetLabel: __address__},
				{sourceLabels: [` + component + `, __address__], regex: gpu-compat-controller;(.+), replacement: "$1:8481",
				targetLabel: __address__}, ` + labels + `]}]}}`,
		},
	} {
		t.Run(values, func(t *testing.T) {
			all := installed(t, "gpus", values+common)
			without := installed(t, "gpus", "{}")
			for name, text := range want {
				same(t, parsed(t, text), any(all[name]), "%s", name)
			}
			if got := len(all) - len(without) - 1; got != len(want) {
				t.Errorf("there are %d objects more, and the settings, want %d", got, len(want))
			}
		})
	}
}

// The alerts are those of the file; only where they lead to is a value.
func TestPrometheusRule(t *testing.T) {
	content, err := os.ReadFile(monitoringDir + "/alerts.yaml")
	noError(t, err)
	rule := installed(t, "gpus", "prometheusRule: {enabled: true, additionalLabels: {role: alerts}}")
	got := rule["PrometheusRule gpus/dra-driver-gpushare"]
	same(t, parsed(t, string(content)), part(t, any(got), "spec"), "the alerts")
	if role := part(t, any(got), "metadata", "labels", "role"); role != "alerts" {
		t.Errorf("label role is %v", role)
	}
	const mine = "https://wiki.example/alerts"
	const ours = "https://github.com/gpushare/dra-driver-gpushare/blob/main/docs/alerts.md"
	want := strings.ReplaceAll(string(content), ours, mine)
	rule = installed(t, "gpus", "prometheusRule: {enabled: true, runbookURL: "+mine+"}")
	got = rule["PrometheusRule gpus/dra-driver-gpushare"]
	same(t, parsed(t, want), part(t, any(got), "spec"), "the alerts with a runbook of one's own")
}

// What is recorded is added where one wants it.
func TestPrometheusRulesThatRecord(t *testing.T) {
	groups := func(file string) []any {
		content, err := os.ReadFile(monitoringDir + "/" + file + ".yaml")
		noError(t, err)
		return part(t, parsed(t, string(content)), "groups").([]any)
	}
	for _, file := range []string{"usage", "dcgm", "ack"} {
		rule := installed(t, "gpus", "prometheusRule: {enabled: true, "+file+": true}")
		got := part(t, any(rule["PrometheusRule gpus/dra-driver-gpushare"]), "spec", "groups")
		same(t, any(slices.Concat(groups("alerts"), groups(file))), got, "the rules with %s", file)
	}
}

// The dashboard is the file, to the letter.
func TestDashboards(t *testing.T) {
	content, err := os.ReadFile(monitoringDir + "/dashboard.json")
	noError(t, err)
	all := installed(t, "gpus", "dashboards: {enabled: true, namespace: grafana, annotations: {folder: gpu}}")
	want := parsed(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: dra-driver-gpushare-dashboard,
		namespace: grafana, annotations: {folder: gpu},
		labels: {app.kubernetes.io/name: dra-driver-gpushare, grafana_dashboard: "1"}}}`).(map[string]any)
	want["data"] = map[string]any{"dra-driver-gpushare.json": string(content)}
	same(t, want, all["ConfigMap grafana/dra-driver-gpushare-dashboard"], "the dashboard")
}

// What would be scraped twice, or could not be, is refused.
func TestWrongMonitors(t *testing.T) {
	for values, want := range map[string]string{
		"{serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}": "one is enough",
		"podMonitor: {interval: often}":                                  "interval",
		"prometheusRule: {runbookURL: alerts.md}":                        "runbookURL",
		"{podMonitor: {enabled: true}, controller: {settings: {METRICS_ADDRESS: 0}}}": "controller.settings." +
			`METRICS_ADDRESS: Prometheus cannot scrape "0"`,
		"{podMonitor: {enabled: true}, kubeletPlugin: {settings: {METRICS_ADDRESS: ''}}}": `Prometheus cannot scrape ""`,
		"{serviceMonitor: {enabled: true}, kubeletPlugin: {settings: {METRICS_ADDRESS: '127.0.0.1:8480'}}}": "cannot " +
			`scrape "127.0.0.1:8480"`,
		// It would be there twice.
		"podMonitor: {additionalLabels: {app.kubernetes.io/name: mine}}": "'app.kubernetes.io/name'",
		"dashboards: {labels: {app.kubernetes.io/name: mine}}":           "'app.kubernetes.io/name'",
	} {
		if _, err := render(load(t), "gpus", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that names %q", values, err, want)
		}
	}
}
