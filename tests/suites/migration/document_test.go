// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package migration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// checkout is the root of the repository, where the document's commands are to run.
const checkout = "../../.."

// block is what a reader copies at once.
type block struct {
	text string
	ran  bool
}

// document is a document with commands, and a shell that runs them.
type document struct {
	sections map[string][]*block
	// environment has the cluster, and what the reader chose.
	environment []string
	// instead has commands of kubectl, each followed by the one that the reader takes instead.
	instead []string
}

// read reads the blocks of commands below each heading of a document.
func read(t *testing.T, path string) *document {
	t.Helper()
	content, err := os.ReadFile(path)
	expect.NoError(t, err)
	d := &document{sections: map[string][]*block{}}
	var heading string
	var open *block
	for line := range strings.Lines(string(content)) {
		trimmed := strings.TrimSpace(line)
		switch {
		case open != nil && trimmed == "```":
			open = nil
		case open != nil:
			open.text += line
		case trimmed == "```console":
			open = &block{}
			d.sections[heading] = append(d.sections[heading], open)
		case strings.HasPrefix(line, "## "):
			heading = strings.TrimSpace(line[len("## "):])
		}
	}
	return d
}

// section is the blocks of a section, of which there have to be so many: one more is a
// step that is not rehearsed.
func (d *document) section(t *testing.T, heading string, want int) []*block {
	t.Helper()
	blocks := d.sections[heading]
	if len(blocks) != want {
		t.Fatalf("section %q has %d blocks of commands, the rehearsal is of %d", heading, len(blocks), want)
	}
	return blocks
}

// allRan reports the blocks that nobody ran.
func (d *document) allRan(t *testing.T) {
	t.Helper()
	for heading, blocks := range d.sections {
		sectionRan(t, heading, blocks)
	}
}

func sectionRan(t *testing.T, heading string, blocks []*block) {
	t.Helper()
	for _, b := range blocks {
		if !b.ran {
			t.Errorf("not rehearsed, of section %q:\n%s", heading, b.text)
		}
	}
}

// choice is a line in which the reader puts a value of their own.
var choice = regexp.MustCompile(`(?m)^ *(OLD|NODE|TEAM)=\S+\n`)

// shell runs the commands from the root of the repository and returns what they print.
func (d *document) shell(ctx context.Context, commands string) (string, error) {
	commands = strings.NewReplacer(d.instead...).Replace(choice.ReplaceAllString(commands, ""))
	command := exec.CommandContext(ctx, "bash", "-e", "-u", "-c", commands)
	command.Dir = checkout
	command.Env = append(os.Environ(), d.environment...)
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s\nprinted\n%s", err, commands, output)
	}
	return string(output), nil
}

// run runs a block that has to succeed, and returns what it prints.
func (d *document) run(t *testing.T, b *block) string {
	t.Helper()
	b.ran = true
	output, err := d.shell(t.Context(), b.text)
	expect.NoError(t, err)
	// What it printed would bury the words of a failure.
	t.Logf("ran\n%s", b.text)
	return output
}

// shows runs a block until it prints all of the texts, as one who waits for what the
// document shows.
func (d *document) shows(t *testing.T, b *block, texts ...string) {
	t.Helper()
	b.ran = true
	d.eventually(t, b.text, texts...)
}

// patience is how long commands may take to print what the document shows. Some of them wait
// themselves, for a rollout for example, which beside the pods of other tests takes more than
// a minute.
const patience = 5 * time.Minute

// eventually runs commands until they print all of the texts, with any space between
// words.
func (d *document) eventually(t *testing.T, commands string, texts ...string) {
	t.Helper()
	wait(t, fmt.Sprintf("%q from\n%s", texts, commands), func(ctx context.Context) error {
		output, err := d.shell(ctx, commands)
		if err != nil {
			return err
		}
		for _, text := range texts {
			if !strings.Contains(words(output), words(text)) {
				return fmt.Errorf("printed, without %q,\n%s", text, output)
			}
		}
		return nil
	})
}

// wait waits for what commands have begun.
func wait(t *testing.T, what string, condition func(ctx context.Context) error) {
	t.Helper()
	expect.NoErrorf(t, harness.Poll(t.Context(), patience, condition), "waited for %s", what)
}

func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// replacement is a row of the table of commands that stand for others.
var replacement = regexp.MustCompile("(?m)^\\| `(kubectl [^`]+)` \\| `(helm [^`]+)` \\|$")

// byHelm is how a reader uses the document who installs by the chart.
func byHelm(t *testing.T, path string) (instead []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	expect.NoError(t, err)
	rows := replacement.FindAllStringSubmatch(string(content), -1)
	if len(rows) != 3 {
		t.Fatalf("%s has %d commands of Helm, the rehearsal is of 3", path, len(rows))
	}
	for _, row := range rows {
		instead = append(instead, row[1]+"\n", strings.ReplaceAll(row[2], "CHART", os.Getenv("MIGRATION_CHART"))+"\n")
		if strings.HasPrefix(row[2], "helm uninstall") {
			// What the section "Uninstall" has in place of the option.
			instead = append(instead, "kubectl delete -k deployments/manifests\n", row[2]+"\n")
		}
	}
	return instead
}

// tools makes a directory for PATH with the cluster's own kubectl, and its plugin.
func tools(t *testing.T, cluster *harness.Cluster) string {
	t.Helper()
	programs, err := filepath.Abs(filepath.Join(checkout, ".build", "bin"))
	expect.NoError(t, err)
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec '%s/cluster' --dir '%s' kubectl \"$@\"\n", programs, cluster.Dir)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700))
	const plugin = "kubectl-inspect-cgpu"
	expect.NoError(t, os.Symlink(filepath.Join(programs, plugin), filepath.Join(dir, plugin)))
	return dir
}
