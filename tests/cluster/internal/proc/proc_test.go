// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"os"
	"os/exec"
	"testing"
)

func TestParseStat(t *testing.T) {
	rest := " S 7 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1000 10"
	for name, content := range map[string]string{
		"a plain name":        "42 (sleep)" + rest,
		"a name with blanks":  "42 (my program)" + rest,
		"a name like a field": "42 (a) S 1 (b)" + rest,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(content)
			if err != nil {
				t.Fatal(err)
			}
			if want := (stat{state: 'S', parent: 7, threads: 1, start: 4711}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	if _, err := parseStat("42 (sleep) S 7"); err == nil {
		t.Error("no error for a line that ends early")
	}
}

func start(t *testing.T) (*exec.Cmd, Process) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	process, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, process
}

func TestKill(t *testing.T) {
	_, process := start(t)
	if !process.Alive() {
		t.Fatal("a running process is not alive")
	}
	if err := process.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Nobody has collected it yet, and it counts as gone all the same.
	if process.Alive() {
		t.Error("a killed process is alive")
	}
	if err := process.Kill(t.Context()); err != nil {
		t.Errorf("killing it again: %v", err)
	}
}

func TestKillSparesAnotherOfTheSameNumber(t *testing.T) {
	_, process := start(t)
	for name, other := range map[string]Process{
		"an earlier one":  {PID: process.PID, Start: process.Start - 1, Boot: process.Boot},
		"an earlier boot": {PID: process.PID, Start: process.Start, Boot: "another"},
		"none":            {},
	} {
		if other.Alive() {
			t.Errorf("%s is alive", name)
		}
		if err := other.Kill(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !process.Alive() {
		t.Error("the process that has the number now was killed")
	}
}

func TestChild(t *testing.T) {
	_, sleeper := start(t)
	self, err := Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got, found := self.Child("sleep"); !found || got != sleeper {
		t.Errorf("got %+v, found %t, want %+v", got, found, sleeper)
	}
	if got, found := self.Child("sleeper"); found {
		t.Errorf("found %+v by a name that no child has", got)
	}
}
