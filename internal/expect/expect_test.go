// SPDX-License-Identifier: Apache-2.0

package expect

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"
)

// recorder is a test that notes what is reported, and whether that ends it.
type recorder struct {
	testing.TB
	said  string
	ended bool
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.ended = true
	runtime.Goexit()
}

func TestWhatIsReported(t *testing.T) {
	one, other := errors.New("one thing"), errors.New("other")
	for name, test := range map[string]struct {
		check func(t testing.TB)
		said  string
		ended bool
	}{
		"no error":             {check: func(t testing.TB) { NoError(t, nil) }},
		"an error":             {func(t testing.TB) { NoError(t, one) }, "one thing", true},
		"no error, with words": {check: func(t testing.TB) { NoErrorf(t, nil, "step %d", 1) }},
		"an error, with words": {func(t testing.TB) { NoErrorf(t, one, "step %d", 1) }, "step 1: one thing", true},
		"that error":           {check: func(t testing.TB) { ErrorIs(t, fmt.Errorf("around: %w", one), one) }},
		"another error":        {func(t testing.TB) { ErrorIs(t, one, other) }, "error one thing, want other", false},
		"the texts":            {check: func(t testing.TB) { Error(t, one, "one", "thing") }},
		"one text of two": {func(t testing.TB) { Error(t, one, "one", "two") },
			`error one thing, want "two" in it`, false},
		"a text, and no error":  {func(t testing.TB) { Error(t, nil, "one") }, `error <nil>, want "one" in it`, false},
		"no text, and no error": {check: func(t testing.TB) { Error(t, nil, "") }},
		"no text, and an error": {func(t testing.TB) { Error(t, one, "") }, "error one thing, want none", false},
		"the parts":             {check: func(t testing.TB) { Says(t, "one thing", "one", "thing") }},
		"one part of two": {func(t testing.TB) { Says(t, "one", "one", "two") },
			"it does not say \"two\":\none", false},
		"no parts at all":        {check: func(t testing.TB) { Says(t, "one") }},
		"an empty part, no text": {check: func(t testing.TB) { Says(t, "", "") }},
		"an empty part, a text":  {func(t testing.TB) { Says(t, "one", "") }, `it says "one", and is to say nothing`, false},
		"equal values":           {check: func(t testing.TB) { Equal(t, []int{1}, []int{1}, "numbers") }},
		"nil, and an empty slice": {func(t testing.TB) { Equal(t, nil, []int{}, "numbers of %s", "a") },
			"numbers of a (-want +got):\n@@ -1 +1 @@\n-null\n+[]\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, done := &recorder{}, make(chan struct{})
			go func() {
				defer close(done)
				test.check(r)
			}()
			<-done
			if r.said != test.said || r.ended != test.ended {
				t.Errorf("it said %q, and ended: %t; want %q, %t", r.said, r.ended, test.said, test.ended)
			}
		})
	}
}

// part is a value with one of each kind of parts.
type part struct {
	Text    string
	List    []any
	Map     map[string]*part
	Time    time.Time
	private int
}

func TestWhatDiffers(t *testing.T) {
	now := time.Now()
	one := func(change func(*part)) part {
		p := part{Text: "a", List: []any{1, "b"}, Map: map[string]*part{"c": {Text: "d"}}, Time: now, private: 1}
		change(&p)
		return p
	}
	for name, test := range map[string]struct {
		change  func(*part)
		differs string
	}{
		"nothing":               {func(*part) {}, ""},
		"the same time":         {func(p *part) { p.Time = now.UTC().Round(0) }, ""},
		"a text":                {func(p *part) { p.Text = "b" }, "-  \"Text\": \"a\",\n+  \"Text\": \"b\",\n"},
		"another time":          {func(p *part) { p.Time = now.Add(time.Hour) }, "+  \"Time\": "},
		"a list that is longer": {func(p *part) { p.List = append(p.List, 2) }, "+    2\n"},
		"another type":          {func(p *part) { p.List[0] = int8(1) }, "+    (int8) 1,\n"},
		"no list":               {func(p *part) { p.List = nil }, "+  \"List\": null,\n"},
		"another key":           {func(p *part) { p.Map = map[string]*part{"e": p.Map["c"]} }, "+    \"e\": {\n"},
		"an empty map":          {func(p *part) { p.Map = map[string]*part{} }, "+  \"Map\": {},\n"},
		"behind a pointer":      {func(p *part) { p.Map["c"].Text = "e" }, "+      \"Text\": \"e\",\n"},
		"no pointer":            {func(p *part) { p.Map["c"] = nil }, "+    \"c\": null\n"},
		"what is not exported":  {func(p *part) { p.private = 2 }, "-  private: (int) 1\n+  private: (int) 2\n"},
	} {
		t.Run(name, func(t *testing.T) { Error(t, Diff(one(func(*part) {}), one(test.change)), test.differs) })
	}
	Error(t, Diff("one\ntwo\nthree", "one\n2\nthree"), "(-want +got):\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n")
	Error(t, Diff(func() {}, nil), "(-want +got):\n")
}
