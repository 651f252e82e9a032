// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// row is a row of the table of reasons: the reason, what it means and what to do.
var row = regexp.MustCompile("(?m)^\\| `(GPU[A-Za-z]+)` \\| [^|]+ \\| [^|]+ \\|$")

func TestEveryReasonIsExplainedOnce(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/troubleshooting.md")
	expect.NoError(t, err)
	var explained []string
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		explained = append(explained, match[1])
	}
	reasons := declared(t)
	if diff := expect.Diff(reasons, explained); diff != nil || !slices.IsSorted(reasons) {
		t.Errorf("the table of docs/troubleshooting.md has other reasons, or in another order: %v", diff)
	}
}

// declared are the reasons of reasons.go.
func declared(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "reasons.go", nil, 0)
	expect.NoError(t, err)
	var reasons []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Reason") {
			if value, ok := spec.Values[0].(*ast.BasicLit); ok {
				reason, err := strconv.Unquote(value.Value)
				expect.NoError(t, err)
				reasons = append(reasons, reason)
			}
		}
		return true
	})
	return reasons
}
