// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// reading is the order in which whoever begins meets the pages; others may stand between them.
var reading = []string{
	"README.md", "docs/install.md", "docs/first-claims.md", "docs/modes.md", "docs/legacy.md", "docs/migrate.md",
	"docs/inspect.md", "docs/troubleshooting.md", "docs/reference.md", "docs/internals/architecture.md",
}

// Each page is in the navigation of the site once, in the order in which it is to be read. Those
// in Chinese follow by themselves.
func TestNavigation(t *testing.T) {
	content, err := os.ReadFile(checkout + "/docs/site/data/navigation.yaml")
	expect.NoError(t, err)
	var navigation struct {
		Sections []struct {
			Title string   `json:"title"`
			Pages []string `json:"pages"`
		} `json:"sections"`
	}
	expect.NoError(t, yaml.UnmarshalStrict(content, &navigation))
	var listed []string
	for _, section := range navigation.Sections {
		if section.Title == "" || len(section.Pages) == 0 {
			t.Errorf("a section %q with %d pages", section.Title, len(section.Pages))
		}
		listed = append(listed, section.Pages...)
	}
	pages := map[string]bool{"README.md": true}
	for path := range files(t, "*.md") {
		if strings.HasPrefix(path, "docs/") && !strings.HasPrefix(path, translations+"/") {
			pages[path] = true
		}
	}
	expect.Equal(t, slices.Sorted(maps.Keys(pages)), slices.Sorted(slices.Values(listed)),
		"documents in docs/site/data/navigation.yaml")
	var begin []string
	for _, path := range listed {
		if slices.Contains(reading, path) {
			begin = append(begin, path)
		}
	}
	expect.Equal(t, reading, begin, "the order of docs/site/data/navigation.yaml")
	// A page has its first heading as its title.
	for path, content := range files(t, "*.md") {
		if (pages[path] || strings.HasPrefix(path, translations+"/")) && !strings.HasPrefix(content, "# ") {
			t.Errorf("%s does not begin with its title", path)
		}
	}
}
