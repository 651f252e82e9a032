// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A test that is left out on an older Kubernetes is one of the end-to-end tests, and has a reason:
// a name that is spelled wrong leaves nothing out, and one that has changed hides nothing.
func TestWhatOlderKubernetesLeavesOut(t *testing.T) {
	lists, err := filepath.Glob(filepath.Join(checkout, "tests/suites/e2e/LEFTOUT-*"))
	if err != nil || len(lists) == 0 {
		t.Fatalf("no list of tests that are left out: %v", err)
	}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	there := map[string]bool{}
	for path, content := range files(t, "*_test.go") {
		for _, found := range function.FindAllStringSubmatch(content, -1) {
			there[found[1]] = there[found[1]] || filepath.Dir(path) == "tests/suites/e2e"
		}
	}
	for _, list := range lists {
		content, err := os.ReadFile(list)
		expect.NoError(t, err)
		for line := range strings.Lines(string(content)) {
			name, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch {
			case name == "#":
			case !there[name]:
				t.Errorf("%s leaves out %q, which is none of the end-to-end tests", list, name)
			case strings.TrimSpace(reason) == "":
				t.Errorf("%s leaves out %s without a reason", list, name)
			}
		}
	}
}
