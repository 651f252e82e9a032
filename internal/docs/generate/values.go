// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// value is one of the chart, or a group of them, which has no default.
type value struct {
	path             []string
	initial, comment string
}

// values is the table of the chart's values, with the comments of values.yaml, which
// `helm show values` prints.
func values(root string) (table, error) {
	t := table{head: []string{"Value", "Default", "Meaning"}}
	path := filepath.Join(root, "deployments/helm/dra-driver-gpushare/values.yaml")
	content, err := os.ReadFile(path)
	if err != nil {
		return t, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		return t, fmt.Errorf("read %s: %w", path, err)
	}
	all := valuesOf(nil, document.Content[0])
	var failed []error
	for _, v := range all {
		comment := commentOf(v, all)
		if comment == "" {
			failed = append(failed, fmt.Errorf("%s has no comment above it in %s", strings.Join(v.path, "."), path))
		}
		t.rows = append(t.rows, []string{code(strings.Join(v.path, ".")), code(v.initial), plain(comment)})
	}
	return t, errors.Join(failed...)
}

// commentOf is what is said of a value: where nothing is, what is said of the one of that
// name in another group.
func commentOf(v value, all []value) string {
	if v.comment != "" {
		return v.comment
	}
	for _, other := range all {
		if other.comment != "" && len(v.path) > 1 && strings.Join(other.path[1:], ".") == strings.Join(v.path[1:], ".") {
			return other.comment
		}
	}
	return ""
}

// valuesOf are the values below a node of the file, in its order.
func valuesOf(path []string, node *yaml.Node) []value {
	var out []value
	for i := 0; i < len(node.Content); i += 2 {
		key, set := node.Content[i], node.Content[i+1]
		v := value{path: append(append([]string{}, path...), key.Value), comment: uncommented(key.HeadComment)}
		isGroup := set.Kind == yaml.MappingNode && set.Style&yaml.FlowStyle == 0
		if !isGroup {
			v.initial = written(set)
		}
		if !isGroup || v.comment != "" {
			out = append(out, v)
		}
		if isGroup {
			out = append(out, valuesOf(v.path, set)...)
		}
	}
	return out
}

// written is a value as one would write it in one line.
func written(node *yaml.Node) string {
	one := *node
	if one.Kind != yaml.ScalarNode {
		one.Style = yaml.FlowStyle
	}
	content, err := yaml.Marshal(&one)
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(content)), " ")
}

// uncommented is the last paragraph of a comment: what stands before an empty line is not
// about the value alone.
func uncommented(comment string) string {
	_, last, found := cutLast(comment, "\n\n")
	if !found {
		last = comment
	}
	var words []string
	for line := range strings.Lines(last) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	return strings.TrimSuffix(strings.Join(words, " "), ".")
}

func cutLast(text, separator string) (before, after string, found bool) {
	if at := strings.LastIndex(text, separator); at >= 0 {
		return text[:at], text[at+len(separator):], true
	}
	return text, "", false
}
