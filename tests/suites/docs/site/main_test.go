// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestCheck(t *testing.T) {
	file := func(body string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(body)} }
	const start = `<h1 id="top">A</h1><a href="zh/b.html#很">b</a> <a href="https://example.com/x">x</a>`
	good := fstest.MapFS{"index.html": file(start),
		"zh/b.html": file(`<h2 id="很">B</h2><a href="../index.html">a</a><a href="#很">b</a><a href="..//">a</a>` +
			`<img src="../pictures/a.svg">` +
			"<pre class=\"mermaid\">flowchart LR\n  a --&gt; b</pre>"), "pictures/a.svg": file("<svg/>")}
	if pages, links, err := check(good); pages != 2 || links != 4 || err != nil {
		t.Errorf("%d pages, %d links, error %v", pages, links, err)
	}
	for want, body := range map[string]string{
		"there is no c.html":         `<a href="c.html">c</a>`,
		"has no heading down":        `<a href="#down">c</a>`,
		"has no heading gone":        `<a href="zh/b.html#gone">c</a>`,
		"index.html shows b.svg":     `<img src="b.svg">`,
		"a picture that begins with": `<pre class="mermaid"></pre><pre class="mermaid">&lt;svg</pre>`,
	} {
		bad := fstest.MapFS{"index.html": file(start + body), "zh/b.html": good["zh/b.html"],
			"pictures/a.svg": good["pictures/a.svg"]}
		if _, _, err := check(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	alone := fstest.MapFS{"index.html": file("<p>A"), "b.html": file("<p>B")}
	if _, _, err := check(alone); err == nil || !strings.Contains(err.Error(), "b.html is not in the navigation") {
		t.Errorf("error %v", err)
	}
	if _, _, err := check(fstest.MapFS{}); err == nil || !strings.Contains(err.Error(), "make site") {
		t.Errorf("of nothing: error %v", err)
	}
}
