// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// pictureMost is how large a picture may be, in bytes: who reads a page waits for it.
const pictureMost = 60_000

// A picture is one that browsers show, in light and in dark surroundings, is small, and is in a
// document.
func TestPictures(t *testing.T) {
	documents := files(t, "*.md")
	for path, content := range files(t, "*.svg") {
		if len(content) > pictureMost {
			t.Errorf("%s has %d bytes, of %d at most", path, len(content), pictureMost)
		}
		for decoder := xml.NewDecoder(strings.NewReader(content)); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%s is not XML: %v", path, err)
				break
			}
		}
		if !strings.Contains(content, "prefers-color-scheme") || !strings.Contains(content, "<title>") {
			t.Errorf("%s has no colours for dark surroundings, or no title", path)
		}
		used := false
		for _, document := range documents {
			used = used || strings.Contains(document, "/"+filepath.Base(path)+")")
		}
		if !used {
			t.Errorf("%s is in no document", path)
		}
	}
}
