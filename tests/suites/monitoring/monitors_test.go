// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// endpoint is one of a monitor's, as far as it decides about addresses and labels.
type endpoint struct {
	Port        string           `json:"port"`
	HonorLabels bool             `json:"honorLabels"`
	Relabelings []map[string]any `json:"relabelings"`
}

// rendered is what the chart makes of a value that enables a monitor: the Services of a
// ServiceMonitor, and the monitor's endpoint.
func rendered(t *testing.T, value string) (services string, of endpoint) {
	t.Helper()
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Fatal("HELM does not name helm: `make lane LANE=monitoring` builds it and says where it is")
	}
	output, err := exec.CommandContext(t.Context(), helm, "template", "dra-driver-gpushare",
		"../../../deployments/helm/dra-driver-gpushare", "--namespace", harness.PluginNamespace, "--kube-version", "1.37",
		"--show-only", "templates/monitoring.yaml", "--set", value+".enabled=true").Output()
	expect.NoErrorf(t, err, "helm template")
	for document := range strings.SplitSeq(string(output), "\n---\n") {
		var object struct {
			Kind string `json:"kind"`
			Spec struct {
				Endpoints           []endpoint `json:"endpoints"`
				PodMetricsEndpoints []endpoint `json:"podMetricsEndpoints"`
			} `json:"spec"`
		}
		expect.NoError(t, yaml.Unmarshal([]byte(document), &object))
		switch object.Kind {
		case "Service":
			services += "---\n" + document + "\n"
		case "ServiceMonitor", "PodMonitor":
			of = append(object.Spec.Endpoints, object.Spec.PodMetricsEndpoints...)[0]
		}
	}
	return services, of
}

// label is a rule that gives a target a label.
func label(name, source string) map[string]any {
	return map[string]any{"source_labels": []string{source}, "target_label": name}
}

// job is the scrape configuration that stands for a monitor: what Prometheus Operator does for
// each, in short, and then the monitor's own rules.
func job(kubeconfig, name, role string, of endpoint, rules ...map[string]any) map[string]any {
	for _, rule := range of.Relabelings {
		own := map[string]any{}
		for key, value := range rule {
			own[strings.NewReplacer("sourceLabels", "source_labels", "targetLabel", "target_label").Replace(key)] = value
		}
		rules = append(rules, own)
	}
	return map[string]any{"job_name": name, "honor_labels": of.HonorLabels, "relabel_configs": rules,
		"kubernetes_sd_configs": []any{map[string]any{"role": role, "kubeconfig_file": kubeconfig,
			"namespaces": map[string]any{"names": []string{harness.PluginNamespace}}}}}
}

// By either monitor of the chart each program is scraped once, with the labels that alerts and
// dashboard use, and without those of its pod.
func TestMonitorsOfTheChart(t *testing.T) {
	kubeconfig := filepath.Join(cluster.Dir, "kubeconfig")
	const component = "label_app_kubernetes_io_component"
	services, byService := rendered(t, "serviceMonitor")
	_, byPod := rendered(t, "podMonitor")
	file := filepath.Join(t.TempDir(), "services.yaml")
	expect.NoError(t, os.WriteFile(file, []byte(services), 0o600))
	cluster.Tool(t, "kubectl", "apply", "-f", file)
	common := []map[string]any{label("namespace", "__meta_kubernetes_namespace"),
		label("container", "__meta_kubernetes_pod_container_name"), label("pod", "__meta_kubernetes_pod_name")}
	for name, scrape := range map[string]map[string]any{
		"PodMonitor": job(kubeconfig, "pods", "pod", byPod, append(common,
			map[string]any{"action": "keep", "source_labels": []string{"__meta_kubernetes_pod_" + component},
				"regex": "gpu-kubelet-plugin|gpu-compat-controller"},
			label("job", "__meta_kubernetes_pod_"+component))...),
		"ServiceMonitor": job(kubeconfig, "services", "endpointslice", byService, append(common,
			map[string]any{"action": "keep", "source_labels": []string{"__meta_kubernetes_endpointslice_port_name"},
				"regex": byService.Port},
			map[string]any{"action": "keep", "regex": "dra-driver-gpushare",
				"source_labels": []string{"__meta_kubernetes_service_label_app_kubernetes_io_name"}},
			map[string]any{"target_label": "endpoint", "replacement": byService.Port},
			label("service", "__meta_kubernetes_service_name"), label("job", "__meta_kubernetes_service_"+component))...),
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, map[string]any{"scrape_configs": []any{scrape}})
			p.has(t, 4, `up == 1`)
			p.has(t, 4, `up{namespace="`+harness.PluginNamespace+`", pod="", container="", endpoint="", service=""}`)
			p.has(t, 2, `up{job="gpu-kubelet-plugin", node=~"`+shareNode+`|`+mpsNode+`"} == 1`)
			p.has(t, 1, `leader_election_master_status{job="gpu-compat-controller"} == 1`)
		})
	}
}
