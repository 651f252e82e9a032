// SPDX-License-Identifier: Apache-2.0

// Package hostprogram runs programs of the host, in a root directory of the host and with the C library that is there.
package hostprogram

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// End is how long a program that is killed may take to end, and its output to end after it.
const End = time.Second

// mostSaid is how much of what a program says is told, in bytes.
const mostSaid = 400

// Run runs a program in a root directory, without variables, until it ends or the context does. It returns what the
// program said, in printable characters, and why it failed.
func Run(ctx context.Context, root, program string, args ...string) (said string, err error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", []string{}, End
	if root != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	}
	out, err := cmd.CombinedOutput()
	return text.Bound(text.Printable(strings.TrimSpace(string(out))), mostSaid), err
}
