// SPDX-License-Identifier: Apache-2.0

// Package expect lets tests state in one line what they rely on.
package expect

import (
	"errors"
	"strings"
	"testing"
)

// NoError ends the test if there is an error. Call it from the test's own goroutine, as t.Fatal.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// NoErrorf is NoError with a format that says what was done.
func NoErrorf(t testing.TB, err error, format string, args ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf(format+": %v", append(args, err)...)
	}
}

// ErrorIs fails the test, and lets it go on, if the error is another one.
func ErrorIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("error %v, want %v", err, target)
	}
}

// Error fails the test, and lets it go on, if the error lacks one of the texts. Without texts, or with empty ones
// alone, it fails the test if there is an error.
func Error(t testing.TB, err error, texts ...string) {
	t.Helper()
	if strings.Join(texts, "") == "" {
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
		return
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q in it", err, text)
		}
	}
}

// Says reports if the text lacks one of the parts, and lets the test go on. Where a part is empty, there is to be no
// text.
func Says(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		switch {
		case part == "" && text != "":
			t.Errorf("it says %q, and is to say nothing", text)
		case !strings.Contains(text, part):
			t.Errorf("it does not say %q:\n%s", part, text)
		}
	}
}
