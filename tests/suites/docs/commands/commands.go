// SPDX-License-Identifier: Apache-2.0

// Package commands finds the blocks of commands in the documents, and who runs them.
//
// tests/suites/pages runs each block as it stands, on a cluster, in the order of the page. A comment
// above a block, or below the title of a page for all of its blocks, says otherwise:
//
//	<!-- not run: needs a real GPU -->
//	<!-- run by tests/suites/migration: TestMigration -->
package commands

import (
	"regexp"
	"slices"
	"strings"
)

// Block is what a reader copies at once.
type Block struct {
	// Path is the document's, Line where the block's first line is in it.
	Path string
	Line int
	// Language is what the document says that the block is.
	Language string
	// Text is the block without its indentation.
	Text string
	// NotRun is why nothing runs the block, or nothing.
	NotRun string
	// Dir and Test are the test that runs the block, where it is not tests/suites/pages.
	Dir, Test string
}

var (
	fence  = regexp.MustCompile("^( *)```(\\w*) *$")
	notRun = regexp.MustCompile(`^ *<!-- not run: (.+) -->$`)
	runBy  = regexp.MustCompile(`^ *<!-- run by (\S+): (Test\w+) -->$`)
)

// languages are those of commands.
var languages = []string{"bash", "console", "sh", "shell"}

// Are reports whether the block is of commands.
func (b Block) Are() bool { return slices.Contains(languages, b.Language) }

// OnCluster reports whether tests/suites/pages runs the block.
func (b Block) OnCluster() bool { return b.Are() && b.NotRun == "" && b.Test == "" }

// Commands are the block's, without what they print: if some lines have a prompt, these.
func (b Block) Commands() string {
	var prompted strings.Builder
	for line := range strings.Lines(b.Text) {
		if command, is := strings.CutPrefix(line, "$ "); is {
			prompted.WriteString(command)
		}
	}
	if prompted.Len() > 0 {
		return prompted.String()
	}
	return b.Text
}

// Blocks are all blocks of a document, in its order.
func Blocks(path, content string) []Block {
	var out []Block
	var page, last Block // what comments say
	var open *Block
	indent, titled := "", false
	for i, line := range strings.Split(content, "\n") {
		if open != nil {
			if strings.TrimSpace(line) == "```" {
				out = append(out, *open)
				open = nil
			} else {
				open.Text += strings.TrimPrefix(line, indent) + "\n"
			}
			continue
		}
		switch found := fence.FindStringSubmatch(line); {
		case found != nil:
			said := last
			if said == (Block{}) {
				said = page
			}
			said.Path, said.Line, said.Language = path, i+2, found[2]
			open, indent, last = &said, found[1], Block{}
		case notRun.MatchString(line):
			last = Block{NotRun: notRun.FindStringSubmatch(line)[1]}
		case runBy.MatchString(line):
			found := runBy.FindStringSubmatch(line)
			last = Block{Dir: found[1], Test: found[2]}
		case strings.HasPrefix(line, "# ") && !titled:
			titled = true
		case strings.TrimSpace(line) != "":
			// A comment that no block follows is of the page, if it is the first thing there.
			if last != (Block{}) && page == (Block{}) && len(out) == 0 {
				page = last
			}
			last = Block{}
		}
	}
	return out
}
