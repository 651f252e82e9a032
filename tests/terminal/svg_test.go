// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSVG(t *testing.T) {
	screen := NewScreen(40, 5)
	if _, err := screen.Write([]byte("\x1b[1mNAME  USED <GiB>\x1b[0m\n\nn1    12/15 \x1b[33m██\x1b[0m░░\n")); err != nil {
		t.Fatal(err)
	}
	var picture bytes.Buffer
	if err := SVG(&picture, "GPUs & pods", screen.Lines(), 40); err != nil {
		t.Fatal(err)
	}
	const begin, end = "</style>\n", "</svg>\n"
	_, drawn, _ := strings.Cut(picture.String(), begin)
	if diff := cmp.Diff(`<rect class="screen" x="0.5" y="0.5" width="351" height="85" rx="6"/>
<text class="b" x="16" y="29" textLength="32">NAME</text>
<text class="b" x="64" y="29" textLength="80">USED &lt;GiB&gt;</text>
<text x="16" y="65" textLength="16">n1</text>
<text x="64" y="65" textLength="40">12/15</text>
<rect class="c3" x="112" y="55" width="16" height="11"/>
<rect class="free" x="128" y="55" width="16" height="11"/>
`+end, drawn); diff != "" {
		t.Errorf("it draws (-want +got):\n%s", diff)
	}
	if !strings.Contains(picture.String(), "<title>GPUs &amp; pods</title>") ||
		!strings.Contains(picture.String(), "prefers-color-scheme:dark") {
		t.Errorf("it begins with %.200s", picture.String())
	}
	for decoder := xml.NewDecoder(&picture); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
