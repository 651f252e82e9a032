// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// asLint makes this test's program the one that go vet runs.
const asLint = "AS_LINT"

func TestMain(m *testing.M) {
	if os.Getenv(asLint) != "" {
		main()
	}
	os.Exit(m.Run())
}

// Of each line of this package the checks complain that its comment "want" names: go vet's name none,
// staticcheck's their own name.
const findings = `package p

type T struct{}

func unused() {} // want U1000

//lint:ignore U1000 It is kept.
func kept() {}

func (T) onlyInTests() {}

func (T) WriteByte(byte) {} // want vet

func F(n, m int) int {
	n = n // want SA4018 vet
	//lint:ignore SA4018 It is kept.
	m = m // want vet
	//lint:ignore SA4018 Another check is not meant.
	if n == 1 && n == 1 { // want SA4000 vet
		return 1
	}
	return m
}
`

// Tests count for what is used, and are looked at themselves, those with tags as well.
const findingsOfTests = `//go:build tagged

package p

func F2() { T{}.onlyInTests() }

func unusedInTests() {} // want U1000
`

const findingsOfAFile = `package p

//lint:file-ignore SA4018 They are kept.

func G(n int) int {
	n = n // want vet
	return n
}
`

func TestFindings(t *testing.T) {
	dir := t.TempDir()
	var want []string
	wanted := regexp.MustCompile(`// want (.*)`)
	for name, content := range map[string]string{"go.mod": "module m\n\ngo 1.26\n", "a.go": findings,
		"a_test.go": findingsOfTests, "b.go": findingsOfAFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(content, "\n") {
			if found := wanted.FindStringSubmatch(line); found != nil {
				for check := range strings.FieldsSeq(found[1]) {
					want = append(want, fmt.Sprint(name, ":", i+1, " ", check))
				}
			}
		}
	}
	vet := exec.CommandContext(t.Context(), "go", "vet", "-vettool="+os.Args[0], "-tags=tagged", "./...")
	vet.Dir, vet.Env = dir, append(os.Environ(), asLint+"=1", "GOFLAGS=", "GOWORK=off")
	out, err := vet.CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) {
		t.Errorf("go vet of a package with findings: %v", err)
	}
	var got []string
	finding := regexp.MustCompile(`(?m)^(\w+\.go:\d+):\d+: (.*?)(?: \(([A-Z]+\d+)\))?$`)
	for _, found := range finding.FindAllStringSubmatch(string(out), -1) {
		got = append(got, found[1]+" "+cmp.Or(found[3], "vet"))
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s\n%s", diff, out)
	}
}
