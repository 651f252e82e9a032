// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"
)

const (
	// translations is where the pages in Chinese are.
	translations = "docs/zh"
	// catalogue has the Chinese of each text of the tables.
	catalogue = translations + "/tables.yaml"
)

// inChinese are the tables with the texts of the catalogue. The error has all texts that lack
// their Chinese, and all Chinese that no table needs: what was changed is in it as both.
func inChinese(english map[string]table, content []byte) (map[string]table, error) {
	chinese := map[string]string{}
	if err := yaml.UnmarshalStrict(content, &chinese); err != nil {
		return nil, fmt.Errorf("read %s: %w", catalogue, err)
	}
	needed := map[string]bool{}
	translate := func(row []string) []string {
		out := slices.Clone(row)
		for i, cell := range row {
			out[i] = strings.ReplaceAll(cell, "`, `", "`、`")
			if isText(cell) {
				out[i], needed[cell] = chinese[cell], true
			}
		}
		return out
	}
	out := map[string]table{}
	for name, t := range english {
		rows := make([][]string, len(t.rows))
		for i, row := range t.rows {
			rows[i] = translate(row)
		}
		out[name] = table{translate(t.head), rows}
	}
	var wrong strings.Builder
	for _, text := range slices.Sorted(maps.Keys(needed)) {
		if chinese[text] == "" {
			fmt.Fprintf(&wrong, "\nadd the Chinese of this text of the code:\n%q:\n  \"\"", text)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(chinese)) {
		if !needed[text] {
			fmt.Fprintf(&wrong, "\nno table has this text any more: remove it, or make it the new text:\n%q:\n  %q",
				text, chinese[text])
		}
	}
	if wrong.Len() > 0 {
		return nil, fmt.Errorf("%s is not what the tables need:%s", catalogue, wrong.String())
	}
	return out, nil
}

var codeSpan = regexp.MustCompile("`[^`]*`")

// isText tells what is said from what is code, a number or empty.
func isText(cell string) bool {
	return strings.ContainsFunc(codeSpan.ReplaceAllString(cell, ""), unicode.IsLetter)
}
