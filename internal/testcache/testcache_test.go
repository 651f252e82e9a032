// SPDX-License-Identifier: Apache-2.0

package testcache_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// dependent is a test that has the go command run another package.
const dependent = `package dependent

import (
	"os/exec"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/testcache"
)

func Test(t *testing.T) {
	if err := testcache.Builds(t.Context(), ".", "./told"); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./told").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
`

// The test is asked again when the package that it runs has changed, or one that this imports.
func TestBuilds(t *testing.T) {
	source, err := os.ReadFile("testcache.go")
	expect.NoError(t, err)
	module := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(module, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		expect.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		// Go takes nothing for settled that has changed within the last two seconds.
		long := time.Now().Add(-time.Hour)
		for ; path != filepath.Dir(module); path = filepath.Dir(path) {
			expect.NoError(t, os.Chtimes(path, long, long))
		}
	}
	write("go.mod", "module github.com/gpushare/dra-driver-gpushare\n\ngo 1.26\n")
	write("internal/testcache/testcache.go", string(source))
	write("dependent_test.go", dependent)
	const imports = "github.com/gpushare/dra-driver-gpushare/told/words"
	write("told/main.go", "package main\n\nimport \""+imports+"\"\n\nfunc main() { println(words.All) }\n")
	write("told/words/words.go", "package words\n\nconst All = \"few\"\n")
	asked := func() bool {
		command := exec.CommandContext(t.Context(), "go", "test", ".")
		command.Dir = module
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return !strings.Contains(string(out), "(cached)")
	}
	asked()
	if asked() {
		t.Error("it is asked again although nothing has changed")
	}
	write("told/words/words.go", "package words\n\nconst All = \"many more\"\n")
	if !asked() {
		t.Error("it is not asked again when what it runs has changed")
	}
	write("told/words/other.go", "package words\n")
	if !asked() {
		t.Error("it is not asked again when there is another file")
	}
}
