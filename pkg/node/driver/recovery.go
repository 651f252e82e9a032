// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
)

// recovery recovers what is prepared when the GPUs have changed: the first time before anything else, later beside
// whoever reads the GPUs. A claim that is being prepared may wait for the next reading, and Recover waits for that
// claim.
type recovery struct {
	recover func(context.Context)
	again   chan struct{}
	begun   bool
}

// changed is called by the one goroutine that reads the GPUs.
func (r *recovery) changed(ctx context.Context) {
	if r.begun {
		signal.Send(r.again)
		return
	}
	r.begun = true
	r.recover(ctx)
}

func (r *recovery) run(ctx context.Context) {
	for {
		select {
		case <-r.again:
			r.recover(ctx)
		case <-ctx.Done():
			return
		}
	}
}
