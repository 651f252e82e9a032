// SPDX-License-Identifier: Apache-2.0

package news

import (
	"errors"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
		expect.Equal(t, step.want, n.Is(step.about, step.message), "step %d: %q of %s is news", i, step.message, step.about)
	}
	for i, want := range []bool{true, false} {
		expect.Equal(t, want, n.IsError(errors.New("refused")), "error %d is news", i)
	}
	if n.IsError(nil) || !n.IsError(errors.New("refused")) {
		t.Error("an error that ended and came again is no news")
	}
}
