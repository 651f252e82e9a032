// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// constant is one of Go, with its comment by paragraphs, each of them one line.
type constant struct {
	name, value string
	doc         []string
}

// constants reads the constants of packages that are texts, in the order of the source.
func constants(dirs ...string) ([]constant, error) {
	var out []constant
	for _, dir := range dirs {
		files, err := parsed(dir)
		if err != nil {
			return nil, err
		}
		values := map[string]ast.Expr{}
		var specs []*ast.ValueSpec
		for _, file := range files {
			for _, declared := range file.Decls {
				group, is := declared.(*ast.GenDecl)
				if !is || group.Tok != token.CONST {
					continue
				}
				for _, spec := range group.Specs {
					value := spec.(*ast.ValueSpec)
					if len(value.Names) != 1 || len(value.Values) != 1 {
						return nil, fmt.Errorf("%s: constant %s does not stand alone with its value", dir, value.Names[0])
					}
					if value.Doc == nil && !group.Lparen.IsValid() {
						value.Doc = group.Doc
					}
					values[value.Names[0].Name] = value.Values[0]
					specs = append(specs, value)
				}
			}
		}
		for _, spec := range specs {
			if text, is := evaluate(spec.Values[0], values); is {
				out = append(out, constant{spec.Names[0].Name, text, paragraphs(spec.Doc)})
			}
		}
	}
	return out, nil
}

// parsed are the files of a package, without its tests.
func parsed(dir string) ([]*ast.File, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var out []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read Go code: %w", err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("read Go code: %w", err)
		}
		out = append(out, file)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no Go code", dir)
	}
	return out, nil
}

// evaluate is the text that an expression of texts and other constants stands for.
func evaluate(e ast.Expr, values map[string]ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		value, known := values[e.Name]
		if !known {
			return "", false
		}
		return evaluate(value, values)
	case *ast.BinaryExpr:
		left, isLeft := evaluate(e.X, values)
		right, isRight := evaluate(e.Y, values)
		return left + right, isLeft && isRight && e.Op == token.ADD
	}
	return "", false
}

func paragraphs(doc *ast.CommentGroup) []string {
	var out []string
	for part := range strings.SplitSeq(doc.Text(), "\n\n") {
		if joined := strings.Join(strings.Fields(part), " "); joined != "" {
			out = append(out, joined)
		}
	}
	return out
}
