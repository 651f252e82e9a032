// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package picture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const (
	// columns is the width of the terminal.
	columns     = 90
	clearScreen = "\x1b[2J\x1b[H"
)

// recording is what a terminal shows, and when.
type recording struct {
	environment []string
	events      []any
	at          time.Duration
	// prompt is what the next command is typed after.
	prompt string
	// shown is all of it.
	shown strings.Builder
}

// terminal is one of a user of the cluster.
func terminal(t *testing.T) *recording {
	environment, _ := cluster.Shell(t)
	return &recording{prompt: "$ ", environment: append(environment, "TERM=xterm-256color", "NO_COLOR=", "COLUMNS=")}
}

// show adds what the terminal shows now.
func (r *recording) show(text string) {
	r.events = append(r.events, []any{r.at.Seconds(), "o", text})
	r.shown.WriteString(text)
}

// runs runs a command as a user types it. In the recording it takes that long, and is to be read for so long.
func (r *recording) runs(t *testing.T, line string, takes, read time.Duration) {
	t.Helper()
	r.show(r.prompt + line + "\r\n")
	r.prompt = "$ "
	r.at += takes
	r.show(r.output(t, line))
	r.at += read
}

// output is what a command writes to a terminal of that width, by util-linux.
func (r *recording) output(t *testing.T, line string) string {
	t.Helper()
	command := exec.Command("script", "--quiet", "--return", "--command",
		fmt.Sprintf("stty columns %d rows 50 && %s", columns, line), "/dev/null")
	command.Env, command.Dir = r.environment, checkout
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, output)
	}
	return string(output)
}

// keep writes the recording, in the format of asciinema, to a file of .build, of which lane picture draws the picture.
func (r *recording) keep(t *testing.T, name string) {
	t.Helper()
	t.Log("\n" + r.shown.String())
	height := 0
	for screen := range strings.SplitSeq(r.shown.String(), clearScreen) {
		height = max(height, rows(screen))
	}
	// It ends when the last of it has been read.
	r.show("\x1b[0m")
	var cast bytes.Buffer
	encoder := json.NewEncoder(&cast)
	for _, part := range append([]any{map[string]int{"version": 2, "width": columns, "height": height}}, r.events...) {
		expect.NoError(t, encoder.Encode(part))
	}
	expect.NoError(t, os.WriteFile(filepath.Join(checkout, ".build", name), cast.Bytes(), 0o644))
}

var colours = regexp.MustCompile(`\x1b\[\d*m`)

// rows is how many rows of the terminal a text takes, with the one of the cursor below it.
func rows(text string) int {
	n := 0
	for line := range strings.SplitSeq(colours.ReplaceAllString(text, ""), "\n") {
		n += max(1, (utf8.RuneCountInString(strings.TrimRight(line, "\r"))+columns-1)/columns)
	}
	return n
}
