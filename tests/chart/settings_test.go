// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
)

// A setting that its program would not start with is refused: all nodes' plugins take a change
// of their ConfigMap within minutes. What kind a setting is of its default says.
func TestSettingsAreOfTheirKind(t *testing.T) {
	kinds := []struct {
		defaults     *regexp.Regexp
		right, wrong []string
	}{
		{regexp.MustCompile("^(true|false)$"), []string{"true", "'false'", "'0'", "1"}, []string{"maybe", "2", "''"}},
		{regexp.MustCompile("^[0-9]+[smh]$"), []string{"0", "90s", "0.5h"}, []string{"soon", "10", "'10'", "1 m", "''"}},
		{regexp.MustCompile("^[0-9]+$"), []string{"7", "'7'"}, []string{"many", "-1", "1.5", "''"}},
	}
	// These have values of their own.
	elsewhere := []string{"BEST_NODE", "DEFRAGMENT_MOVES", "GPU_READ_INTERVAL", "LEADER_ELECT_LEASE_DURATION",
		"LOG_VERBOSITY", "PREEMPTION"}
	c, checked := load(t), 0
	for _, s := range documentedSettings(t) {
		for _, kind := range kinds {
			if slices.Contains(elsewhere, s.name) || !kind.defaults.MatchString(s.initial) {
				continue
			}
			checked++
			settings(t, c, s.component, s.name, kind.right, kind.wrong)
		}
	}
	if checked < 15 {
		t.Errorf("the documents have %d settings of these kinds", checked)
	}
}

// Some settings have few values.
func TestSettingsWithFewValues(t *testing.T) {
	c := load(t)
	for name, values := range map[string]struct{ right, wrong []string }{
		"ISOLATION_CGPU":         {[]string{"auto", "hami"}, []string{"MPS", "7"}},
		"ISOLATION_CORE_MEM":     {[]string{"cgpu", "mps"}, []string{"none"}},
		"LIMITS_LIFTED_BY":       {[]string{"claims", "classes", "nodes"}, []string{"node"}},
		"MIG_INSTANCES":          {[]string{"static", "dynamic"}, []string{"on", "true"}},
		"UNHEALTHY_TAINT_EFFECT": {[]string{"NoSchedule", "NoExecute"}, []string{"PreferNoSchedule"}},
		"HEALTH_IGNORED_XIDS":    {[]string{"13", "'13, 31'", "''"}, []string{"[13, 31]", "13;31", "'13 31'"}},
		"AUDIT_EVICT": {[]string{"no-grant", "'over-share, beside-mps, client-slots'"},
			[]string{"all", "[no-grant]"}},
		"KUBE_API_BURST": {[]string{"1", "400", "'10'"}, []string{"0", "'0'", "'00'", "-1", "1.5", "many"}},
		"KUBE_API_QPS":   {[]string{"'0.5'"}, []string{"fast"}},
		// As long as a second, by one part of the sum at least.
		"GPU_READ_INTERVAL": {[]string{"1s", "90s", "1.5s", "0.5h", "500ms1s", "1500ms", "1m30s", "1000ms", "10000ms",
			"30000ms", "60000ms", "120000ms", "01000ms", "0.01h", "0.05h", "0.0003h", "0.00028h", "0.05m", "0.02m", "0.0167m",
			"0.1m", "1000000us", "2500000.5µs", "1000000000ns"},
			[]string{"0", "'0'", "0s", "500ms", "0.9s", "0.01m", "0.0166m", "0.0002h", "0.00027h", "999ms", "0999ms",
				"999999us", "999999999ns", "-1s", "10", "soon", "''"}},
		"AUDIT_INTERVAL": {[]string{"0", "'0'", "0s", "0h0m0s", "1s", "0.5h", "1m30s", "10000ms", "30000ms", "60000ms",
			"120000ms", "0.01h", "0.05h", "0.05m", "1000000us"},
			[]string{"500ms", "0.9s", "-1s", "10", "soon", "''"}},
		"REQUIRED_NODE_LABEL": {[]string{"migrated", "gpu.aliyun.com/migrated", "''", "a_b.C-d"},
			[]string{"gpu.aliyun.com/migrated=true", "a/b/c", "-a", "a-", "GPU.example.com/a", "'/a'", "' a'",
				strings.Repeat("a", 64)}},
	} {
		settings(t, c, "kubeletPlugin", name, values.right, values.wrong)
	}
}

// The controller ranks nodes in three ways.
func TestNodePlacements(t *testing.T) {
	c := load(t)
	settings(t, c, "controller", "NODE_PLACEMENT", []string{"best", "binpack", "spread"}, []string{"any", "''", "true"})
}

// From five seconds to three minutes, without fractions, as gpu-compat-controller takes it.
func TestLeaseDurations(t *testing.T) {
	c := load(t)
	settings(t, c, "controller", "LEADER_ELECT_LEASE_DURATION",
		[]string{"5s", "9s", "15s", "99s", "179s", "180s", "1m", "1m0s", "2m59s", "3m", "3m0s"},
		[]string{"0", "'0'", "15", "'15'", "-15s", "4s", "5.5s", "181s", "200s", "3m1s", "4m", "1h", "soon", "''"})
}

// settings checks which values of a setting the chart's schema takes, and which it refuses.
func settings(t *testing.T, c *chart.Chart, component, name string, right, wrong []string) {
	t.Helper()
	for _, value := range right {
		setting(t, c, component, name, value, true)
	}
	for _, value := range wrong {
		setting(t, c, component, name, value, false)
	}
}

// setting checks that the chart's schema takes a value of a setting, or refuses it by the setting's name.
func setting(t *testing.T, c *chart.Chart, component, name, value string, right bool) {
	t.Helper()
	values := fmt.Sprintf("%s: {settings: {%s: %s}}", component, name, value)
	given, err := chartutil.ReadValues([]byte(values))
	noError(t, err)
	all, err := chartutil.CoalesceValues(c, given)
	noError(t, err)
	err = chartutil.ValidateAgainstSchema(c, all)
	if right && err != nil {
		t.Errorf("%s: %v", values, err)
	}
	if !right && (err == nil || !strings.Contains(err.Error(), "/settings/"+name+"'")) {
		t.Errorf("%s: error %v, want one that names the setting", values, err)
	}
}
