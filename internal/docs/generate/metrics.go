// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	nodemetrics "github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
)

// part is a part of the metrics, which have a table of their own.
type part int

const (
	ofNode part = iota
	ofClaims
	ofPrograms
)

// parts say by their names which metrics belong where: the first that fits.
var parts = []struct {
	name *regexp.Regexp
	is   part
}{
	{regexp.MustCompile(`^gpushare_claim_status_`), ofPrograms},
	{regexp.MustCompile(`^gpushare_(claims?|dra)_`), ofClaims},
	{regexp.MustCompile(`^gpushare_(gpu|devices|mps|audit)(_|$)`), ofNode},
	{regexp.MustCompile(`^gpushare_`), ofPrograms},
}

func partOf(name string) part {
	for _, p := range parts {
		if p.name.MatchString(name) {
			return p.is
		}
	}
	return ofPrograms
}

// registered keeps what the programs would register.
type registered struct {
	prometheus.Registerer
	all []prometheus.Collector
}

// MustRegister implements prometheus.Registerer.
func (r *registered) MustRegister(c ...prometheus.Collector) { r.all = append(r.all, c...) }

// metric is one as its description has it: client_golang shows that as text only.
var metric = regexp.MustCompile(`fqName: "([^"]*)", help: (".*"), unit: "[^"]*", constLabels: \{(.*)\}, ` +
	`variableLabels: \{(.*)\}\}$`)

// metricsOf is the table of a part of the metrics. The test of pkg/node/metrics compares labels with what a scrape has,
// and holds the types to the names.
func metricsOf(of part) (table, error) {
	t := table{head: []string{"Metric", "Labels", "Meaning"}}
	r := &registered{}
	r.MustRegister(metrics.BuildInfo("p"))
	r.MustRegister(nodemetrics.NewNodeCollector(context.Background(), nil))
	nodemetrics.NewPlugin(r)
	metrics.NewController(r, nil)
	for _, collector := range r.all {
		descriptions := make(chan *prometheus.Desc)
		go func() {
			collector.Describe(descriptions)
			close(descriptions)
		}()
		for d := range descriptions {
			found := metric.FindStringSubmatch(d.String())
			if found == nil {
				return t, fmt.Errorf("%s is not understood", d)
			}
			if partOf(found[1]) != of {
				continue
			}
			t.rows = append(t.rows, []string{code(found[1]), labelsOf(found[3], found[4]),
				plain(strings.TrimSuffix(unquoted(found[2]), "."))})
		}
	}
	return t, nil
}

// unquoted is a text as %q has written it, which has no quotes in it.
func unquoted(text string) string { return strings.ReplaceAll(strings.Trim(text, `"`), `\"`, `"`) }

func labelsOf(constant, variable string) string {
	var out []string
	for _, list := range []string{constant, variable} {
		for label := range strings.SplitSeq(list, ",") {
			if name, _, _ := strings.Cut(label, "="); name != "" {
				out = append(out, code(name))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
