// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package monitoring has a real Prometheus scrape the driver on a real cluster, and asks it
// what the dashboard and the alerts ask. Lane monitoring makes the cluster.
package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

const (
	shareNode = "n1"
	mpsNode   = "n2"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// panel is one of the dashboard, or a row, with its panels where it is closed at first.
type panel struct {
	ID          int
	Type, Title string
	Targets     []struct{ Expr, RefID string }
	Panels      []panel
}

func dashboard(t *testing.T) (dashboard struct{ Panels []panel }) {
	t.Helper()
	content, err := os.ReadFile("../../../deployments/monitoring/dashboard.json")
	if err == nil {
		err = json.Unmarshal(content, &dashboard)
	}
	expect.NoError(t, err)
	for _, p := range dashboard.Panels {
		dashboard.Panels = append(dashboard.Panels, p.Panels...)
	}
	return dashboard
}

// variables chooses for the dashboard's.
func variables(namespace string) *strings.Replacer {
	return strings.NewReplacer("$node", shareNode+"|"+mpsNode, "$namespace", namespace, "$__rate_interval", "5m")
}

// panels are the queries of the dashboard, by the panel and the query's letter, for a choice of
// its variables.
func panels(t *testing.T, namespace string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range dashboard(t).Panels {
		for _, target := range p.Targets {
			all[fmt.Sprintf("%d %s (%s)", p.ID, p.Title, target.RefID)] = variables(namespace).Replace(target.Expr)
		}
	}
	if len(all) < 50 {
		t.Fatalf("the dashboard has %d queries", len(all))
	}
	return all
}

// has waits until a query has this many series, and returns nothing else.
func (p prometheus) has(t *testing.T, count int, query string) {
	t.Helper()
	what := fmt.Sprintf("Prometheus to have %d series of %s", count, query)
	harness.Eventually(t, what, func(ctx context.Context) error {
		got, err := p.series(ctx, query)
		if err == nil && len(got) != count {
			err = fmt.Errorf("it has %d: %v", len(got), got)
		}
		return err
	})
}

// use brings the cluster into a state in which there is something to say in every panel: claims
// of every kind come and go, while Prometheus scrapes; one pod holds more than it was granted,
// and a GPU is unhealthy.
func use(t *testing.T, p prometheus) *harness.Namespace {
	t.Helper()
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Share("gpu", "3Gi")))
	ns.Template(t, "two", harness.Requests(harness.Capped("mps", 0, "memory", "2Gi")))
	fair := harness.Pod("fair", shareNode, harness.FromTemplate("three"))
	// What is counted by a label is there when it has been counted once, and has a rate when it
	// has been again: so one follows the other.
	ns.Run(t, fair, harness.Pod("first", mpsNode, harness.FromTemplate("two")),
		harness.GoingTo(harness.Asking("mem 1"), "legacy", shareNode))
	p.has(t, 3, `gpushare_claim_memory_granted_bytes{namespace="`+ns.Name+`"}`)
	ns.Delete(t, "first")
	p.has(t, 2, `gpushare_claim_memory_granted_bytes{namespace="`+ns.Name+`"}`)
	ns.Run(t, harness.Pod("over", shareNode, harness.FromTemplate("three")),
		harness.Pod("second", mpsNode, harness.FromTemplate("two")))
	p.has(t, 4, `gpushare_claim_memory_granted_bytes{namespace="`+ns.Name+`"}`)
	ns.Delete(t, "second")
	ns.Run(t, harness.Pod("third", mpsNode, harness.FromTemplate("two")))

	ns.SetGPUProcesses(t, shareNode, harness.GPUProcess{GPU: 0, Pod: "over", MemoryMiB: 5000},
		harness.GPUProcess{GPU: 0, Pod: "fair", MemoryMiB: 1075})
	cluster.ChangeMachine(t, shareNode, func(s *sim.Spec) {
		for i := range s.GPUs {
			for j := range s.GPUs[i].State.Processes {
				s.GPUs[i].State.Processes[j].SMPercent = ptr.To(30)
			}
		}
	})
	cluster.Tool(t, "node", "fault", shareNode, "gpu-3", "xid=79")
	return ns
}

// Every query of the dashboard has an answer, and every alert knows what it uses: those fire
// that should, and no others.
func TestPrometheusScrapesTheDriver(t *testing.T) {
	p := start(t, documented(t, filepath.Join(cluster.Dir, "kubeconfig")))
	// Two plugins and two replicas of the controller.
	p.has(t, 4, `up == 1`)
	p.has(t, 0, `up == 0`)
	p.has(t, 2, `up{job="gpu-kubelet-plugin", node=~"`+shareNode+`|`+mpsNode+`"}`)
	p.has(t, 1, `leader_election_master_status{name="gpu-compat-controller"} == 1`)
	ns := use(t, p)
	queries := panels(t, ns.Name)
	for _, name := range slices.Sorted(maps.Keys(queries)) {
		t.Run(name, func(t *testing.T) {
			query := queries[name]
			harness.Eventually(t, "the panel to show something", func(ctx context.Context) error {
				got, err := p.series(ctx, query)
				if err != nil {
					return err
				}
				for _, sample := range got {
					if !math.IsNaN(float64(sample.Value)) {
						return nil
					}
				}
				return fmt.Errorf("%s has %d series, and none has a value", query, len(got))
			})
		})
	}
	// The labels of the plugin's pod are not those of claims.
	p.has(t, 0, `{__name__=~"gpushare_claim_.*", pod=~"gpu-kubelet-plugin.*"}`)
	t.Run("alerts", p.alerts)
	t.Run("autoscaler", func(t *testing.T) {
		cluster.Tool(t, "kubectl", "apply", "--dry-run=server", "--validate=strict", "-n", ns.Name, "-f",
			"../../../demo/scaling/hpa.yaml")
	})
	t.Run("usage", func(t *testing.T) { p.usage(t, ns) })
}

var metric = regexp.MustCompile(`\b(gpushare_[a-z_]+|leader_election_master_status|up)\b`)

// onlyIfWrong is a metric that has series only where its alert is to fire.
const onlyIfWrong = "gpushare_pool_surplus_slices"

// alerts checks the alerts as Prometheus evaluates them.
func (p prometheus) alerts(t *testing.T) {
	want := []string{"GPUShareAuditFindings", "GPUShareGPUUnhealthy"}
	harness.Eventually(t, "the alerts to be what they should", func(ctx context.Context) error {
		result, err := p.Rules(ctx, nil)
		if err != nil {
			return err
		}
		var wrong []error
		active := map[string]bool{}
		rules := 0
		for _, group := range result.Groups {
			for _, rule := range group.Rules {
				if record, is := rule.(prometheusv1.RecordingRule); is {
					if record.Health != prometheusv1.RuleHealthGood || record.LastError != "" {
						wrong = append(wrong, fmt.Errorf("%s: %s %s", record.Name, record.Health, record.LastError))
					}
					continue
				}
				alert, is := rule.(prometheusv1.AlertingRule)
				if !is {
					return fmt.Errorf("rule %v is neither an alert nor a record", rule)
				}
				rules++
				if alert.Health != prometheusv1.RuleHealthGood || alert.LastError != "" {
					wrong = append(wrong, fmt.Errorf("%s: %s %s", alert.Name, alert.Health, alert.LastError))
				}
				if len(alert.Alerts) > 0 {
					active[alert.Name] = true
				}
				for _, name := range metric.FindAllString(alert.Query, -1) {
					if name == onlyIfWrong {
						continue
					}
					got, err := p.series(ctx, "count("+name+")")
					if err == nil && len(got) == 0 {
						err = fmt.Errorf("%s: there is no %s", alert.Name, name)
					}
					wrong = append(wrong, err)
				}
			}
		}
		if got := slices.Sorted(maps.Keys(active)); rules == 0 || !slices.Equal(got, want) {
			wrong = append(wrong, fmt.Errorf("of %d alerts %v are pending or fire, want %v", rules, got, want))
		}
		return errors.Join(wrong...)
	})
}

// usage checks what `kubectl inspect cgpu usage` and rightsize make of the series, and of the nodes' own metrics.
func (p prometheus) usage(t *testing.T, ns *harness.Namespace) {
	type row struct {
		Pod                                  string
		GrantedGiB, UsedGiB, PeakGiB         *float64
		PodGrantedGiB, PodP99GiB, PodPeakGiB *float64
	}
	read := func(arguments ...string) map[string]row {
		t.Helper()
		out, _ := cluster.Inspect(t, append([]string{"usage", "--by", "pod", "-n", ns.Name, "-o", "json"}, arguments...)...)
		var report struct{ Rows []row }
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		rows := map[string]row{}
		for _, row := range report.Rows {
			rows[row.Pod] = row
		}
		return rows
	}
	const over = 5000.0 / 1024
	is := func(what string, got *float64, want float64) {
		t.Helper()
		if math.Abs(ptr.Deref(got, -1)-want) > 0.01 {
			t.Errorf("%s is %v, want %.2f", what, ptr.Deref(got, -1), want)
		}
	}
	// The audit has read it, and Prometheus has scraped that.
	p.has(t, 1, `gpushare_claim_memory_peak_bytes{namespace="`+ns.Name+`", pod="over"} > 5e9`)
	now := read()["over"]
	is("what is granted", now.GrantedGiB, 3)
	is("what is used", now.UsedGiB, over)
	is("the peak since the plugin started", now.PeakGiB, over)
	past := read("--prometheus", p.url, "--since", "10m")
	is("what was granted", past["over"].PodGrantedGiB, 3226.0/1024)
	is("the peak in Prometheus", past["over"].PodPeakGiB, over)
	// Pods that are gone had something, too.
	if first, there := past["first"]; !there || first.PodGrantedGiB == nil {
		t.Errorf("of pod first there is %+v among %v", first, slices.Sorted(maps.Keys(past)))
	}
	out, _ := cluster.Inspect(t, "rightsize", "--prometheus", p.url, "-n", ns.Name)
	for _, want := range []string{"Looked 7d back", "pod/over", "pod/legacy", "wait: it was seen for less than a day"} {
		if !strings.Contains(out, want) {
			t.Errorf("rightsize does not print %q:\n%s", want, out)
		}
	}
}
