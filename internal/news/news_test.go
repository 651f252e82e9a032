// SPDX-License-Identifier: Apache-2.0

package news

import (
	"errors"
	"testing"
)

func TestNews(t *testing.T) {
	var n Teller
	for i, step := range []struct {
		about, message string
		want           bool
	}{
		{"GPU 0", "", false},
		{"GPU 0", "lost", true},
		{"GPU 0", "lost", false},
		{"GPU 1", "lost", true},
		{"GPU 0", "hangs", true},
		{"GPU 0", "", false},
		{"GPU 0", "hangs", true},
	} {
		if got := n.Is(step.about, step.message); got != step.want {
			t.Errorf("step %d: %q of %s is news: %t", i, step.message, step.about, got)
		}
	}
	for i, want := range []bool{true, false} {
		if got := n.IsError(errors.New("refused")); got != want {
			t.Errorf("error %d is news: %t", i, got)
		}
	}
	if n.IsError(nil) || !n.IsError(errors.New("refused")) {
		t.Error("an error that ended and came again is no news")
	}
}
