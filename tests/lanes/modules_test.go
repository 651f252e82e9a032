// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// tags are build tags of Go as a script or a Makefile has them.
var tags = regexp.MustCompile(`-tags[ =](netgo,[^"\s]*)`)

// Image and tests are built with the same tags, or most of it is compiled once more.
func TestTagsAreTheSame(t *testing.T) {
	for _, file := range []string{"Makefile", "deployments/container/files.sh", "tests/standins/image/files.sh"} {
		content, err := os.ReadFile(filepath.Join(checkout, file))
		expect.NoError(t, err)
		got := tags.FindAllStringSubmatch(string(content), -1)
		if len(got) != 1 || got[0][1] != buildTags {
			t.Errorf("%s has tags %q, want %s", file, got, buildTags)
		}
	}
}

// required is a line of a go.mod that says which version of a module is taken.
var required = regexp.MustCompile(`(?m)^(?:require )?\t?(\S+) (v\d\S+)(?: // indirect)?$`)

// A module that several of these take is of one version: what they have in common is compiled once. To
// mend it, take the newest version in each: go get MODULE@VERSION && go mod tidy.
func TestSharedModulesAreOfOneVersion(t *testing.T) {
	taken := map[string][2]string{}
	for _, dir := range []string{".", "tests/cluster", "tests/policies", "tests/chart",
		"tests/cluster/components/kubernetes"} {
		content, err := os.ReadFile(filepath.Join(checkout, dir, "go.mod"))
		expect.NoError(t, err)
		found := required.FindAllStringSubmatch(string(content), -1)
		if len(found) == 0 {
			t.Errorf("%s/go.mod requires nothing", dir)
		}
		for _, m := range found {
			module, version := m[1], m[2]
			if version == "v0.0.0" { // replaced
				continue
			}
			if other, is := taken[module]; is && other[0] != version {
				t.Errorf("%s takes %s of %s, %s takes %s", dir, version, module, other[1], other[0])
			}
			taken[module] = [2]string{version, dir}
		}
	}
}
