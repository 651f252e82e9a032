// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// `helm show values` is the reference of the chart's values: each has a comment, or the one of its
// name in another group has. The values that docs/reference.md names are there.
func TestValuesOfTheChart(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(checkout, "deployments/helm/dra-driver-gpushare/values.yaml"))
	expect.NoError(t, err)
	var document yaml.Node
	expect.NoError(t, yaml.Unmarshal(content, &document))
	comments := map[string]string{}
	commented(comments, "", document.Content[0])
	explained := map[string]bool{}
	for path, comment := range comments {
		_, name, _ := strings.Cut(path, ".")
		explained[name] = explained[name] || comment != ""
	}
	for path, comment := range comments {
		if _, name, _ := strings.Cut(path, "."); comment == "" && !explained[name] {
			t.Errorf("%s has no comment above it in values.yaml", path)
		}
	}
	page, err := os.ReadFile(filepath.Join(checkout, "docs/reference.md"))
	expect.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Values of the chart\n")
	named := regexp.MustCompile("(?m)^\\| `([\\w.]+)`").FindAllStringSubmatch(section, -1)
	for _, value := range named {
		if _, is := comments[value[1]]; !is {
			t.Errorf("docs/reference.md names %s, which is no value", value[1])
		}
	}
	if len(named) < 10 {
		t.Errorf("docs/reference.md names %d values", len(named))
	}
}

// commented collects the comments above the values below a node, by their paths. A group needs
// none.
func commented(all map[string]string, prefix string, node *yaml.Node) {
	for i := 0; i < len(node.Content); i += 2 {
		key, set := node.Content[i], node.Content[i+1]
		if set.Kind == yaml.MappingNode && set.Style&yaml.FlowStyle == 0 {
			commented(all, prefix+key.Value+".", set)
			continue
		}
		all[prefix+key.Value] = uncommented(key.HeadComment)
	}
}
