// SPDX-License-Identifier: Apache-2.0

package deployments

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// alert is a rule of monitoring/alerts.yaml.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	expect.NoError(t, yaml.UnmarshalStrict(read(t, "monitoring/alerts.yaml"), &file))
	var all []alert
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("monitoring/alerts.yaml has no alerts")
	}
	return all
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	expect.NoError(t, err)
	return content
}

// panel is what the tests look at of a panel of the dashboard.
type panel struct {
	ID         int    `json:"id"`
	Title      string `json:"title"`
	Type       string `json:"type"`
	Datasource *struct {
		UID string `json:"uid"`
	} `json:"datasource"`
	GridPos struct{ X, Y, W, H int } `json:"gridPos"`
	Targets []struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
	} `json:"targets"`
	// Panels are those of a row that is closed at first.
	Panels []panel `json:"panels"`
}

type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

func theDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	expect.NoError(t, json.Unmarshal(read(t, "monitoring/dashboard.json"), &d))
	for _, p := range d.Panels {
		d.Panels = append(d.Panels, p.Panels...)
	}
	return d
}

// targetLabels are those that a scrape gives every series.
var targetLabels = []string{"node", "job", "instance"}

// theirs are the metrics that are used and are none of the driver's own, with their labels.
var theirs = map[string][]string{
	"up":                            nil,
	"leader_election_master_status": {"name"},
	"workqueue_depth":               {"name"},
	"rest_client_requests_total":    {"code", "method", "host"},
	"rest_client_request_duration_seconds_bucket": {"verb", "host", "le"},
	"process_resident_memory_bytes":               nil,
	"process_cpu_seconds_total":                   nil,
}

// documented are the metrics that can be queried, with their labels: those of docs/metrics.md,
// which a test of pkg/node/metrics compares with the code, and theirs. Names tell histograms.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	all := maps.Clone(theirs)
	row := regexp.MustCompile("(?m)^\\| `(gpushare_[a-z_]+?(_(?:duration|lag)_seconds)?)` \\| ([^|]*)\\|")
	for _, found := range row.FindAllStringSubmatch(string(read(t, "../docs/metrics.md")), -1) {
		var labels []string
		for label := range strings.SplitSeq(found[3], ",") {
			if label = strings.Trim(label, " `"); label != "" {
				labels = append(labels, label)
			}
		}
		if found[2] == "" {
			all[found[1]] = labels
			continue
		}
		all[found[1]+"_bucket"] = append(slices.Clone(labels), "le")
		all[found[1]+"_sum"], all[found[1]+"_count"] = labels, labels
	}
	if len(all) < 50 {
		t.Fatalf("docs/metrics.md lists %d metrics", len(all))
	}
	// The names of what is recorded begin with its labels.
	record := regexp.MustCompile(`(?m)^  - record: (([a-z_]+):[a-z0-9_]+:[a-z0-9_]+)$`)
	for _, found := range record.FindAllStringSubmatch(string(read(t, "monitoring/usage.yaml")), -1) {
		all[found[1]] = strings.Split(found[2], "_")
	}
	return all
}

// Rules are made of metrics and records that there are, and so are pages and examples.
func TestRecords(t *testing.T) {
	there := documented(t)
	record := regexp.MustCompile(`(?m)^  - record: (\S+)$`)
	for _, file := range []string{"dcgm", "ack"} {
		for _, found := range record.FindAllStringSubmatch(string(read(t, "monitoring/"+file+".yaml")), -1) {
			there[found[1]] = nil
		}
	}
	name := regexp.MustCompile(`\b[a-z_]+:gpushare_[a-z_]+:[a-z0-9_]+|\bgpushare_[a-z_]+`)
	for path, least := range map[string]int{"monitoring/usage.yaml": 50, "monitoring/dcgm.yaml": 5,
		"monitoring/ack.yaml": 5, "../docs/cost.md": 10, "../docs/gpu-operator.md": 5,
		"../demo/scaling/prometheus-adapter.yaml": 4, "../demo/scaling/keda.yaml": 2} {
		all := name.FindAllString(string(read(t, path)), -1)
		if len(all) < least {
			t.Errorf("%s names %d metrics", path, len(all))
		}
		for _, used := range all {
			if _, is := there[used]; !is {
				t.Errorf("%s names %s, which there is not", path, used)
			}
		}
	}
}

var (
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring|group_left|group_right) *\(([^)]*)\)`)
	window   = regexp.MustCompile(`\[[^\]]*\]`)
	word     = regexp.MustCompile(`\b([a-zA-Z_:][a-zA-Z0-9_:]*)( *\(|\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"[^"]*"`)
)

// unknownOf says what a query names that there is not: metrics, and labels that they do not
// have. by are the labels that it groups by.
func unknownOf(query string, metrics map[string][]string) (unknown, by []string) {
	for _, found := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(found[1], ",") {
			by = append(by, strings.TrimSpace(label))
		}
	}
	rest := window.ReplaceAllString(grouping.ReplaceAllString(query, ""), "")
	known := slices.Clone(targetLabels)
	for _, found := range word.FindAllStringSubmatch(rest, -1) {
		if name := found[1]; !strings.HasSuffix(found[2], "(") && !slices.Contains([]string{"and", "or", "unless"}, name) {
			labels, there := metrics[name]
			if !there {
				unknown = append(unknown, "metric "+name)
			}
			known = append(known, labels...)
			for _, match := range matcher.FindAllStringSubmatch(found[2], -1) {
				if !slices.Contains(append(slices.Clone(targetLabels), labels...), match[1]) {
					unknown = append(unknown, fmt.Sprintf("label %s of %s", match[1], name))
				}
			}
		}
	}
	for _, label := range by {
		if !slices.Contains(known, label) {
			unknown = append(unknown, "label "+label)
		}
	}
	return unknown, by
}

func TestUnknownOf(t *testing.T) {
	metrics := map[string][]string{"m_total": {"kind"}, "up": nil}
	for query, want := range map[string]string{
		`sum by (node, kind) (rate(m_total{kind="a", node=~"$node"}[5m])) > 0.5`: "",
		`up{job="x"} == 0 or vector(0)`:                                          "",
		`sum(m) / sum by (kind) (m_total)`:                                       "metric m",
		`m_total{sort="a"}`:                                                      "label sort of m_total",
		`up{kind="a"}`:                                                           "label kind of up",
		`sum by (sort) (m_total)`:                                                "label sort",
		`up and on (kind) max by (node) (up)`:                                    "label kind",
		`histogram_quantile(0.9, sum by (le) (rate(x[1m])))`:                     "metric x, label le",
	} {
		got, _ := unknownOf(query, metrics)
		expect.Equal(t, want, strings.Join(got, ", "), "%s: %q", query, got)
	}
}

// runbooks is where the chart's alerts lead to by default.
const runbooks = "https://github.com/gpushare/dra-driver-gpushare/blob/main/docs/alerts.md"

var used = regexp.MustCompile(`\$labels\.([a-z_]+)`)

// An alert uses metrics that there are, says who is affected, and has an entry in
// docs/alerts.md.
func TestAlerts(t *testing.T) {
	metrics := documented(t)
	page := string(read(t, "../docs/alerts.md"))
	entries := map[string]string{}
	for _, section := range strings.Split(page, "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		entries[name] = text
	}
	for _, a := range alerts(t) {
		unknown, by := unknownOf(a.Expr, metrics)
		if len(unknown) > 0 {
			t.Errorf("alert %s names what there is not: %s", a.Alert, strings.Join(unknown, ", "))
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("alert %s has severity %q", a.Alert, a.Labels["severity"])
		}
		for _, name := range []string{"summary", "description"} {
			text := a.Annotations[name]
			if text == "" {
				t.Errorf("alert %s has no %s", a.Alert, name)
			}
			for _, label := range used.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(by, label[1]) {
					t.Errorf("the %s of alert %s names label %s, which its result does not have", name, a.Alert, label[1])
				}
			}
		}
		expect.Equal(t, runbooks+"#"+strings.ToLower(a.Alert), a.Annotations["runbook_url"],
			"alert %s has the runbook", a.Alert)
		entry := entries[a.Alert]
		delete(entries, a.Alert)
		wait := a.For
		if wait == "" {
			wait = "at once"
		}
		for _, part := range []string{fmt.Sprintf("**Meaning** (%s, %s). ", a.Labels["severity"], wait), "**Impact.** ",
			"**Action.** ", "```console\n"} {
			if !strings.Contains(entry, part) {
				t.Errorf("the entry of %s in docs/alerts.md has no %q", a.Alert, part)
			}
		}
	}
	for name := range entries {
		if strings.HasPrefix(name, "GPU") {
			t.Errorf("docs/alerts.md has %s, which is no alert", name)
		}
	}
}

// The dashboard uses metrics that there are, and its variables.
func TestDashboard(t *testing.T) {
	metrics := documented(t)
	d := theDashboard(t)
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if query, ok := v.Query.(map[string]any); ok {
			text, _ := query["query"].(string)
			text = strings.NewReplacer("label_values(", "", ", node)", "", ", namespace)", "").Replace(text)
			if unknown, _ := unknownOf(text, metrics); len(unknown) > 0 {
				t.Errorf("variable %s names what there is not: %s", v.Name, strings.Join(unknown, ", "))
			}
		}
	}
	expect.Equal(t, []string{"datasource", "node", "namespace"}, variables, "variables")
	all := map[string]bool{}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, o := range d.Panels[:i] {
			if a, b := p.GridPos, o.GridPos; a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, o.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource == nil || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q does not ask the data source that was chosen", p.Title)
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
		for _, target := range p.Targets {
			if unknown, _ := unknownOf(target.Expr, metrics); len(unknown) > 0 {
				t.Errorf("panel %q names what there is not: %s", p.Title, strings.Join(unknown, ", "))
			}
			for name := range metrics {
				all[name] = all[name] || strings.Contains(target.Expr, name)
			}
		}
	}
	for name := range metrics {
		if strings.HasPrefix(name, "gpushare_") && !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") &&
			!strings.HasSuffix(name, "_findings_total") && !strings.HasSuffix(name, "unprepare_duration_seconds_bucket") &&
			!all[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}
