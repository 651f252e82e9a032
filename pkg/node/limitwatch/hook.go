// SPDX-License-Identifier: Apache-2.0

package limitwatch

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

const (
	// hookEnd is how long a hook that is killed may take to end, and its output to end after it.
	hookEnd = time.Second
	// mostSaid is how much of what the hook says is told, in bytes.
	mostSaid = 400
)

// newHookCalls bound the tries of the hook. One that the kernel does not let end, as where the driver
// or the host's file system does not answer, costs a goroutine.
func newHookCalls(hook string) *limitcalls.Calls {
	return limitcalls.New("the hook "+hook, limitsCall+2*hookEnd)
}

// hookRuns reports that the hook does not run on the host.
func (l *Watch) hookRuns(ctx context.Context, library string) error {
	_, err := limitcalls.Try(ctx, l.hook, "trying the program that sets limits", func() (struct{}, error) {
		return struct{}{}, l.try(ctx, l.Library.HostRoot, l.Config.Hook, library)
	})
	if errors.Is(err, limitcalls.ErrHung) {
		return fmt.Errorf("%w: it is tried again by itself; if this stays, see whether nvidia-smi works on the node", err)
	}
	return err
}

// tryHook runs the hook as the container runtime would: in the host's root directory, with the
// host's C library.
func tryHook(ctx context.Context, hostRoot, program, library string) error {
	ctx, cancel := context.WithTimeout(ctx, limitsCall)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "probe", "--library", library)
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.WaitDelay = hookEnd
	if hostRoot != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: hostRoot}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the hook %s does not run on the host: %w: %s", program, err,
			text.Bound(text.Printable(strings.TrimSpace(string(out))), mostSaid))
	}
	return nil
}
