// SPDX-License-Identifier: Apache-2.0

// Lint is what `go vet -vettool` runs: the analyzers of go vet and those of staticcheck in one program.
// The go command then runs them package by package, with all that it knows of dependencies, and keeps
// what they said in its build cache: a package that has not changed, and of whose imports none has, is
// not read again.
package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/facts/directives"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() {
	unitchecker.Main(analyzers()...)
}

// analyzers are those of `go vet` and those that staticcheck runs if nobody tells it which.
func analyzers() []*analysis.Analyzer {
	all := slices.Clone(vet.Suite)
	for _, a := range slices.Concat(simple.Analyzers, staticcheck.Analyzers, stylecheck.Analyzers) {
		if !a.Doc.NonDefault {
			all = append(all, heedingDirectives(a.Analyzer))
		}
	}
	return append(all, heedingDirectives(unusedCode))
}

// unusedCode is staticcheck's check U1000, which leaves reporting to its program. What it calls unused
// is unused in the package with its tests, which is how the go command hands packages over.
var unusedCode = &analysis.Analyzer{
	Name:     "U1000",
	Doc:      "find unused code",
	Requires: []*analysis.Analyzer{unused.Analyzer.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		for _, object := range pass.ResultOf[unused.Analyzer.Analyzer].(unused.Result).Unused {
			pos := position(pass.Fset, pass.Files, object.Position)
			pass.Report(analysis.Diagnostic{Pos: pos, Message: fmt.Sprintf("%s %s is unused", object.Kind, object.Name)})
		}
		return nil, nil
	},
}

// position is where in these files a place lies, or none if it lies in no file of them.
func position(files *token.FileSet, syntax []*ast.File, place token.Position) token.Pos {
	for _, f := range syntax {
		file := files.File(f.FileStart)
		if file.Name() == place.Filename && place.Offset <= file.Size() {
			return file.Pos(place.Offset)
		}
	}
	return token.NoPos
}

// heedingDirectives makes an analyzer name itself where it reports, and say nothing where a comment
// `//lint:ignore` or `//lint:file-ignore` asks for that: staticcheck's own program does both.
func heedingDirectives(a *analysis.Analyzer) *analysis.Analyzer {
	run := a.Run
	a.Requires = append(slices.Clone(a.Requires), directives.Analyzer)
	a.Run = func(pass *analysis.Pass) (any, error) {
		asked := pass.ResultOf[directives.Analyzer].([]lint.Directive)
		report, named := pass.Report, *pass
		named.Report = func(d analysis.Diagnostic) {
			if !ignored(pass.Fset, asked, a.Name, d.Pos) {
				d.Message += " (" + a.Name + ")"
				report(d)
			}
		}
		return run(&named)
	}
	return a
}

// ignored reports whether one of the directives is about the check and about the place. A directive about
// a line is a comment at the node that it is about.
func ignored(files *token.FileSet, asked []lint.Directive, check string, pos token.Pos) bool {
	place := files.Position(pos)
	return slices.ContainsFunc(asked, func(d lint.Directive) bool {
		of := files.Position(d.Node.Pos())
		if len(d.Arguments) < 2 || of.Filename != place.Filename || d.Command == "ignore" && of.Line != place.Line ||
			d.Command != "ignore" && d.Command != "file-ignore" {
			return false
		}
		return slices.ContainsFunc(strings.Split(d.Arguments[0], ","), func(pattern string) bool {
			matched, _ := filepath.Match(strings.ToLower(pattern), strings.ToLower(check))
			return matched
		})
	})
}
