// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
	"golang.org/x/tools/go/analysis/suite/vet"
	"honnef.co/go/tools/quickfix"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
)

// golangci is the part of golangci-lint's configuration that says which analyzers run.
type golangci struct {
	Run struct {
		BuildTags []string `yaml:"build-tags"`
	}
	Linters struct {
		Default  string
		Enable   []string
		Settings struct {
			Govet struct {
				DisableAll bool `yaml:"disable-all"`
				Enable     []string
			}
			Staticcheck struct{ Checks []string }
		}
	}
	Formatters struct{ Enable []string }
}

// Editors find by golangci-lint what lane lint finds, and no more: with the same analyzers and the same tags.
func TestEditorsAreToldTheSame(t *testing.T) {
	content, err := os.ReadFile("../../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var config golangci
	if err := yaml.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	linters := config.Linters
	if linters.Default != "none" || !slices.Equal(linters.Enable, []string{"govet", "staticcheck", "unused"}) ||
		!linters.Settings.Govet.DisableAll || !slices.Equal(config.Formatters.Enable, []string{"gofmt"}) {
		t.Errorf("other linters than those of lane lint: %+v", config)
	}
	told := slices.Clone(linters.Settings.Govet.Enable)
	for _, a := range slices.Concat(simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers, quickfix.Analyzers) {
		if chosen(linters.Settings.Staticcheck.Checks, a.Analyzer.Name) {
			told = append(told, a.Analyzer.Name)
		}
	}
	// Linter unused is staticcheck's check of that name.
	told = append(told, unusedCode.Name)
	var run []string
	for _, a := range analyzers() {
		run = append(run, a.Name)
	}
	slices.Sort(told)
	slices.Sort(run)
	if diff := gocmp.Diff(run, told); diff != "" {
		t.Errorf("analyzers of lane lint and of .golangci.yml (-lane +.golangci.yml):\n%s", diff)
	}
	if len(run) < len(vet.Suite)+100 {
		t.Errorf("lane lint runs %d analyzers", len(run))
	}
	table, err := os.ReadFile("../../lanes/table.go")
	if err != nil {
		t.Fatal(err)
	}
	suite, err := os.ReadFile("../../lanes/suite.go")
	if err != nil {
		t.Fatal(err)
	}
	tags := config.Run.BuildTags
	own, common := strings.Join(tags[:3], ","), strings.Join(tags[3:], ",")
	if !strings.Contains(string(table), "-tags "+own+",`") ||
		!strings.Contains(string(suite), `buildTags = "`+common+`"`) {
		t.Errorf(".golangci.yml has the tags %v, which are not those of lane lint", tags)
	}
}

// chosen reports whether the patterns choose a check, as staticcheck reads them: the last that matches decides.
func chosen(patterns []string, check string) bool {
	is := false
	for _, pattern := range patterns {
		name, out := strings.CutPrefix(pattern, "-")
		prefix, wild := strings.CutSuffix(name, "*")
		if name == "all" || name == check || wild && strings.HasPrefix(check, prefix) {
			is = !out
		}
	}
	return is
}
