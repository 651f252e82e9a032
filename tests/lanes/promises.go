// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// page has the table of promises.
const page = "docs/internals/development.md"

// Promise is what a page tells users, and the test that holds it.
type Promise struct {
	// Text is what is promised, and Page where.
	Text, Page string
	// Lane runs Test.
	Lane, Test string
}

// row is one of the table of promises: | promise | page | `Test` | lane |.
var row = regexp.MustCompile("(?m)^\\| (.+) \\| \\[?([a-zA-Z.]+\\.md)[^|]* \\| `(Test\\w+)` \\| ([a-z0-9-]+) \\|$")

// promises reads the table in the checkout.
func promises(checkout string) ([]Promise, error) {
	content, err := os.ReadFile(filepath.Join(checkout, page))
	if err != nil {
		return nil, fmt.Errorf("read the table of promises: %w", err)
	}
	_, table, found := strings.Cut(string(content), "\n## Promises\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var all []Promise
	for _, m := range row.FindAllStringSubmatch(table, -1) {
		all = append(all, Promise{Text: m[1], Page: m[2], Test: m[3], Lane: m[4]})
	}
	if !found || len(all) == 0 {
		return nil, fmt.Errorf("%s has no table of promises below the heading \"Promises\": its rows are "+
			"| promise | page | `Test…` | lane |", page)
	}
	return all, nil
}

// pattern matches these tests' names, as -run and -skip of `go test` take it.
func pattern(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }
