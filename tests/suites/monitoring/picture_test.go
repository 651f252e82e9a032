// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package monitoring

import (
	"encoding/json"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// pictureEnv names the environment variable with the file to describe the dashboard's picture in, if one is wanted.
const pictureEnv = "DASHBOARD"

// drawnRows are the rows of the dashboard that are in its picture, but for their tables.
var drawnRows = []string{"Cluster", "Claims"}

const (
	// column is the width of one of the dashboard's 24 columns, in pixels.
	column = 38
	// pointsMost is how many points a line has: the picture is to be small.
	pointsMost = 40
)

// object is one of JSON.
type object = map[string]any

// draw describes the picture of these rows, in the manner of Vega-Lite: what Prometheus answers to the panels'
// queries, from the time on.
func (p prometheus) draw(t *testing.T, file, namespace string, from time.Time) {
	t.Helper()
	var rows []any
	title, at := "", 0
	for _, panel := range dashboard(t).Panels {
		if panel.Type == "row" {
			title = panel.Title
		}
		if !slices.Contains(drawnRows, title) || panel.Type != "stat" && panel.Type != "timeseries" {
			continue
		}
		if at != panel.GridPos.Y {
			at = panel.GridPos.Y
			rows = append(rows, object{"hconcat": []any{}, "spacing": 30,
				"resolve": object{"scale": object{"color": "independent"}}})
		}
		row := rows[len(rows)-1].(object)
		row["hconcat"] = append(row["hconcat"].([]any), panel.chart(p.points(t, panel, namespace, from), time.Since(from)))
	}
	content, err := json.Marshal(object{"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "vconcat": rows,
		"background": "white", "resolve": object{"scale": object{"color": "independent"}},
		"config": object{"aria": false, "view": object{"stroke": nil},
			"axis": object{"tickCount": 4, "titleFontWeight": "normal"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// points are what Prometheus answers to a panel's queries.
func (p prometheus) points(t *testing.T, panel panel, namespace string, from time.Time) []object {
	t.Helper()
	points, to := []object{}, time.Now()
	for _, target := range panel.Targets {
		value, _, err := p.QueryRange(t.Context(), variables(namespace).Replace(target.Expr),
			prometheusv1.Range{Start: from, End: to, Step: to.Sub(from) / pointsMost})
		if err != nil {
			t.Fatalf("panel %s: %v", panel.Title, err)
		}
		for _, stream := range value.(model.Matrix) {
			name := named(target.LegendFormat, stream.Metric)
			name = strings.ReplaceAll(name, namespace, "team-a")
			last := math.NaN()
			for i, sample := range stream.Values {
				// A line of steps takes only those at which it changes.
				if v := float64(sample.Value); !math.IsNaN(v) && (v != last || i == len(stream.Values)-1) {
					points = append(points, object{"s": int(sample.Timestamp.Time().Sub(from).Seconds()), "name": name, "v": v})
					last = v
				}
			}
		}
	}
	return points
}

// formats are d3's, by Grafana's unit.
var formats = map[string]string{"percentunit": ".0%", "bytes": ".2s", "short": "d"}

// chart is a panel as Vega-Lite draws it. Its times end at that.
func (p panel) chart(points []object, end time.Duration) object {
	format := formats[p.FieldConfig.Defaults.Unit]
	chart := object{"title": object{"text": p.Title, "fontSize": 12}, "width": p.GridPos.W*column - 60}
	if p.Type == "stat" {
		chart["data"], chart["height"] = object{"values": points[max(0, len(points)-1):]}, 40
		chart["mark"] = object{"type": "text", "fontSize": 26, "color": "#1a7f37"}
		chart["encoding"] = object{"text": object{"field": "v", "type": "quantitative", "format": format}}
		return chart
	}
	chart["data"], chart["height"] = object{"values": points}, 120
	chart["mark"] = object{"type": "line", "interpolate": "step-after"}
	legend := object{"orient": "bottom", "title": nil, "columns": 2,
		"labelFontSize": 9, "labelLimit": 120, "symbolSize": 40}
	chart["encoding"] = object{
		"x": object{"field": "s", "type": "quantitative", "title": "seconds",
			"scale": object{"domain": []int{0, int(end.Seconds())}}},
		"y":     object{"field": "v", "type": "quantitative", "title": nil, "axis": object{"format": format}},
		"color": object{"field": "name", "type": "nominal", "legend": legend},
	}
	return chart
}

var placeholder = regexp.MustCompile(`{{(\w+)}}`)

// named is a series' name, by the format of Grafana.
func named(format string, labels model.Metric) string {
	return strings.TrimSpace(placeholder.ReplaceAllStringFunc(format, func(found string) string {
		return string(labels[model.LabelName(strings.Trim(found, "{}"))])
	}))
}
