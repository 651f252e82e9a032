// SPDX-License-Identifier: Apache-2.0

// Package prometheus tests deployments/monitoring with Prometheus' own parser and promtool.
// Its module pins the Prometheus that tests/suites/monitoring has scrape a cluster. `make
// test-prometheus` runs both.
package prometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const (
	monitoring = "../../../../deployments/monitoring/"
	rules      = monitoring + "alerts.yaml"
	dashboards = monitoring + "dashboard.json"
)

// promtool is the path of the program, which lane monitoring builds.
func promtool(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PROMTOOL")
	if path == "" {
		t.Skip("PROMTOOL does not name promtool: `make lane LANE=monitoring` builds it and says where it is")
	}
	return path
}

// panel is one of the dashboard, or a row, with its panels where it is closed at first.
type panel struct {
	ID      int
	Title   string
	Targets []struct{ Expr, RefID string }
	Panels  []panel
}

// queries are those of the alerts and of the dashboard, by where they are.
func queries(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert string `yaml:"alert"`
				Expr  string `yaml:"expr"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			all[rule.Alert] = rule.Expr
		}
	}
	if content, err = os.ReadFile(dashboards); err != nil {
		t.Fatal(err)
	}
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		dashboard.Panels = append(dashboard.Panels, p.Panels...)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all[fmt.Sprintf("panel %d %q, query %s", p.ID, p.Title, target.RefID)] = strings.ReplaceAll(target.Expr,
				"$__rate_interval", "1m")
		}
	}
	return all
}

// Only counters are asked for their rate, which is what it means to be one; histograms are
// made of counters.
func TestQueries(t *testing.T) {
	for where, query := range queries(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
			selector, ok := node.(*parser.VectorSelector)
			if !ok || selector.Name == "up" {
				return nil
			}
			counter := slices.ContainsFunc([]string{"_total", "_count", "_bucket", "_sum"},
				func(suffix string) bool { return strings.HasSuffix(selector.Name, suffix) })
			ranged := len(path) > 0
			if ranged {
				_, ranged = path[len(path)-1].(*parser.MatrixSelector)
			}
			if counter != ranged {
				t.Errorf("%s: %s is a counter: %t; its rate is taken: %t", where, selector.Name, counter, ranged)
			}
			return nil
		})
	}
}

// Each alert fires when it should, and not otherwise.
func TestAlerts(t *testing.T) {
	files, err := filepath.Glob("rules/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of rules' tests: %v", len(files), err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Tests []struct {
				Checks []struct {
					Alert  string `yaml:"alertname"`
					Alerts []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			} `yaml:"tests"`
		}
		if err := yaml.Unmarshal(content, &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, test := range file.Tests {
			for _, check := range test.Checks {
				if len(check.Alerts) > 0 {
					fires[check.Alert] = true
				} else {
					quiet[check.Alert] = true
				}
			}
		}
	}
	var alerts []string
	for name := range queries(t) {
		if !strings.HasPrefix(name, "panel ") {
			alerts = append(alerts, name)
		}
	}
	slices.Sort(alerts)
	for which, tested := range map[string]map[string]bool{"fire": fires, "do not fire": quiet} {
		if got := slices.Sorted(maps.Keys(tested)); !slices.Equal(got, alerts) {
			t.Errorf("alerts that %s in rules/: %s\nwant all: %s", which, got, alerts)
		}
	}
	for _, arguments := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", rules, monitoring + "ack.yaml",
		monitoring + "dcgm.yaml", monitoring + "usage.yaml"},
		append([]string{"test", "rules"}, files...)} {
		output, err := exec.CommandContext(t.Context(), promtool(t), arguments...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, bytes.TrimSpace(output))
		}
	}
}
