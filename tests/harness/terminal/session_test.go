// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
)

// A program has a terminal of the size that was asked for, reads what is typed, and can be
// interrupted.
func TestSession(t *testing.T) {
	screen := NewScreen(30, 5)
	command := exec.CommandContext(t.Context(), "sh", "-c",
		`[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size && read word && echo "got $word" && exec cat`)
	session, err := Start(command, screen)
	if err != nil {
		testneeds.Skipf(t, "start a program on a pseudo terminal: %v", err)
	}
	expect.NoError(t, session.Type("a word\n"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := screen.WaitFor(ctx, func(text string, _ bool) bool {
		return strings.HasSuffix(text, "\ngot a word")
	}); err != nil {
		t.Fatal(err)
	}
	expect.NoError(t, session.Type("\x03"))
	if err := session.Wait(); err == nil || err.Error() != "signal: interrupt" {
		t.Errorf("after Ctrl-C it ended with %v", err)
	}
	if got := screen.Text(); !strings.Contains(got, "5 30\n") {
		t.Errorf("it shows\n%s", got)
	}
}
