// SPDX-License-Identifier: Apache-2.0

package limitwatch

import (
	"context"
	"errors"
	"fmt"

	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/hostprogram"
)

// newHookCalls bound the tries of the hook. One that the kernel does not let end, as where the driver
// or the host's file system does not answer, costs a goroutine.
func newHookCalls(hook string) *limitcalls.Calls {
	return limitcalls.New("the hook "+hook, limitsCall+2*hostprogram.End)
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
	if said, err := hostprogram.Run(ctx, hostRoot, program, "probe", "--library", library); err != nil {
		return fmt.Errorf("the hook %s does not run on the host: %w: %s", program, err, said)
	}
	return nil
}
