// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
	"go.yaml.in/yaml/v3"
)

const scaling = "../../../../demo/scaling/"

// inUse are two pods of a Deployment: p uses 6 of 8 GiB, and half of its GPU's time by two containers; q uses 1 of 4
// GiB.
const inUse = `load 1m
  namespace_pod:gpushare_used_gib:sum{namespace="team",pod="p"} 6x5
  namespace_pod:gpushare_used_gib:sum{namespace="team",pod="q"} 1x5
  namespace_pod:gpushare_used_gib:sum{namespace="other",pod="p"} 9x5
  namespace_pod:gpushare_granted_gib:sum{namespace="team",pod="p"} 8x5
  namespace_pod:gpushare_granted_gib:sum{namespace="team",pod="q"} 4x5
  namespace_pod:gpushare_granted_gib:sum{namespace="other",pod="p"} 9x5
  gpushare_claim_sm_utilization_ratio{namespace="team",pod="p",container="main",claim="p-gpu"} 0.25x5
  gpushare_claim_sm_utilization_ratio{namespace="team",pod="p",container="side",claim="p-gpu"} 0.25x5
  namespace_workload:gpushare_used_gib:sum{namespace="team",workload="Deployment/infer"} 7x5
  namespace_workload:gpushare_used_gib:sum{namespace="team",workload="Deployment/infer-large"} 9x5
  namespace_workload:gpushare_granted_gib:sum{namespace="team",workload="Deployment/infer"} 14x5
  namespace_workload:gpushare_granted_gib:sum{namespace="team",workload="Deployment/infer-large"} 9x5
`

// manifest reads a file of demo/scaling, which has no other fields than these.
func manifest(t *testing.T, name string, into any) {
	t.Helper()
	file, err := os.Open(scaling + name)
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// answers holds a query to what it has to answer.
func answers(t *testing.T, query string, want ...string) {
	t.Helper()
	query = strings.Join(strings.Fields(query), " ")
	promqltest.RunTest(t, inUse+"\neval instant at 5m "+query+"\n  "+strings.Join(want, "\n  ")+"\n",
		promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery))
}

// The autoscaler asks for metrics that prometheus-adapter makes by its rules, and those have the values of the pods.
func TestHorizontalPodAutoscaler(t *testing.T) {
	type resource struct {
		Resource string `yaml:"resource"`
	}
	var adapter struct {
		Rules struct {
			Custom []struct {
				SeriesQuery string `yaml:"seriesQuery"`
				Resources   struct {
					Overrides map[string]resource `yaml:"overrides"`
				} `yaml:"resources"`
				Name         map[string]string `yaml:"name"`
				MetricsQuery string            `yaml:"metricsQuery"`
			} `yaml:"custom"`
		} `yaml:"rules"`
	}
	manifest(t, "prometheus-adapter.yaml", &adapter)
	wants := map[string][]string{"gpu_memory_used_ratio": {`{pod="p"} 0.75`, `{pod="q"} 0.25`},
		"gpu_sm_used_ratio": {`{pod="p"} 0.5`}}
	var has []string
	for _, rule := range adapter.Rules.Custom {
		name := rule.Name["as"]
		has = append(has, name)
		t.Run(name, func(t *testing.T) {
			if rule.Resources.Overrides["pod"].Resource != "pod" ||
				rule.Resources.Overrides["namespace"].Resource != "namespace" || wants[name] == nil {
				t.Errorf("its resources are %v, and %v is scripted for it", rule.Resources.Overrides, wants[name])
			}
			answers(t, "count("+rule.SeriesQuery+") > bool 0", "{} 1")
			answers(t, strings.NewReplacer("<<.GroupBy>>", "pod", "<<.LabelMatchers>>", `namespace="team",pod=~"p|q"`).
				Replace(rule.MetricsQuery), wants[name]...)
		})
	}
	var autoscaler struct {
		APIVersion string         `yaml:"apiVersion"`
		Kind       string         `yaml:"kind"`
		Metadata   map[string]any `yaml:"metadata"`
		Spec       struct {
			ScaleTargetRef map[string]string `yaml:"scaleTargetRef"`
			MinReplicas    int               `yaml:"minReplicas"`
			MaxReplicas    int               `yaml:"maxReplicas"`
			Metrics        []struct {
				Type string `yaml:"type"`
				Pods struct {
					Metric map[string]string `yaml:"metric"`
					Target map[string]string `yaml:"target"`
				} `yaml:"pods"`
			} `yaml:"metrics"`
		} `yaml:"spec"`
	}
	manifest(t, "hpa.yaml", &autoscaler)
	var asks []string
	for _, metric := range autoscaler.Spec.Metrics {
		asks = append(asks, metric.Pods.Metric["name"])
	}
	if !slices.Equal(asks, has) {
		t.Errorf("the autoscaler asks for %v, and there are %v", asks, has)
	}
}

// KEDA's query has one value, which counts no workload whose name only begins alike.
func TestScaledObject(t *testing.T) {
	var object struct {
		APIVersion string         `yaml:"apiVersion"`
		Kind       string         `yaml:"kind"`
		Metadata   map[string]any `yaml:"metadata"`
		Spec       struct {
			ScaleTargetRef  map[string]string `yaml:"scaleTargetRef"`
			MinReplicaCount int               `yaml:"minReplicaCount"`
			MaxReplicaCount int               `yaml:"maxReplicaCount"`
			Triggers        []struct {
				Type       string            `yaml:"type"`
				MetricType string            `yaml:"metricType"`
				Metadata   map[string]string `yaml:"metadata"`
			} `yaml:"triggers"`
		} `yaml:"spec"`
	}
	manifest(t, "keda.yaml", &object)
	for _, trigger := range object.Spec.Triggers {
		for key := range trigger.Metadata {
			if !slices.Contains([]string{"serverAddress", "query", "threshold"}, key) {
				t.Errorf("KEDA's Prometheus scaler is not known to have %s", key)
			}
		}
		answers(t, trigger.Metadata["query"], `{namespace="team",workload="Deployment/infer"} 0.5`)
	}
	if len(object.Spec.Triggers) != 1 {
		t.Errorf("it has %d triggers", len(object.Spec.Triggers))
	}
}
