// SPDX-License-Identifier: Apache-2.0

// Package style_test holds what docs/internals/development.md asks of every file and no
// tool checks: a licence line, a length that can be seen whole, lines that fit a screen.
package style_test

import (
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
)

const (
	maxLines   = 400
	maxColumns = 120
	licence    = "// SPDX-License-Identifier: Apache-2.0"
)

// TestGoFiles looks at each Go file of the repository, as git knows them.
func TestGoFiles(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "-z", "*.go").Output()
	if err != nil {
		testneeds.Skipf(t, "asking git which files there are: %v: the repository's files are checked in a clone of it", err)
	}
	// What git lists changes with its index: `go test` asks again after that.
	index, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "rev-parse", "--path-format=absolute",
		"--git-path", "index").Output()
	expect.NoErrorf(t, err, "asking git where its index is")
	if _, err := os.Stat(strings.TrimSpace(string(index))); err != nil {
		t.Fatal(err)
	}
	files := strings.Split(strings.Trim(string(out), "\x00"), "\x00")
	if len(files) < 100 {
		t.Fatalf("git lists %d Go files", len(files))
	}
	for _, name := range files {
		source, err := os.ReadFile("../../" + name)
		if err != nil {
			if os.IsNotExist(err) {
				continue // removed, and not yet committed
			}
			t.Fatal(err)
		}
		for _, complaint := range complaints(source) {
			t.Errorf("%s: %s", name, complaint)
		}
	}
}

func TestComplaints(t *testing.T) {
	long := strings.Repeat("x", maxColumns)
	for name, test := range map[string]struct{ source, want string }{
		"in order":          {licence + "\n\npackage p\n", ""},
		"no licence":        {"package p\n", "line 1 is not " + licence},
		"a long line":       {licence + "\npackage p\n\nvar x" + long + " int\n", "line 4 has 129 columns"},
		"a long comment":    {licence + "\npackage p\n\n// " + long + "\n", "line 4 has 123 columns"},
		"text as it is":     {licence + "\npackage p\n\nvar a = `\n" + long + long + "\n`\n", ""},
		"letters, no bytes": {licence + "\npackage p\n\n// " + strings.Repeat("卡", 100) + "\n", ""},
		"too many lines":    {licence + "\npackage p\n" + strings.Repeat("\n", maxLines), "402 lines"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(complaints([]byte(test.source)), "; "); !strings.Contains(got, test.want) ||
				(got == "") != (test.want == "") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// complaints says what is wrong with a file. Lines of a raw string are data, which
// nobody can break, and may be as long as they are.
func complaints(source []byte) []string {
	lines := strings.Split(strings.TrimSuffix(string(source), "\n"), "\n")
	var wrong []string
	if !strings.HasPrefix(lines[0], licence) && !strings.HasPrefix(lines[0], "//go:build") {
		wrong = append(wrong, "line 1 is not "+licence)
	}
	if len(lines) > maxLines {
		wrong = append(wrong, fmt.Sprint(len(lines), " lines: at most ", maxLines, " can be seen whole"))
	}
	raw := rawLines(source)
	for i, line := range lines {
		if columns := utf8.RuneCountInString(line); columns > maxColumns && !raw[i+1] {
			wrong = append(wrong, fmt.Sprint("line ", i+1, " has ", columns, " columns: at most ", maxColumns, " fit"))
		}
	}
	return wrong
}

// rawLines has the numbers of the lines that a raw string of several lines covers.
func rawLines(source []byte) map[int]bool {
	lines := map[int]bool{}
	file := token.NewFileSet().AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return lines
		}
		if tok != token.STRING || !strings.HasPrefix(literal, "`") || !strings.Contains(literal, "\n") {
			continue
		}
		first := file.Line(pos)
		for i := range strings.Count(literal, "\n") + 1 {
			lines[first+i] = true
		}
	}
}
