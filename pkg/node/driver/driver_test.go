// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// The kubelet's first call waits for the GPUs, but not for ever, and not without
// need.
func TestFirstClaimsWaitForTheGPUs(t *testing.T) {
	for name, tc := range map[string]struct {
		readAfter, cancelAfter, want time.Duration
	}{
		"read already":  {0, time.Hour, 0},
		"read soon":     {time.Second, time.Hour, time.Second},
		"never read":    {time.Hour, time.Hour, gpusLimit},
		"call is ended": {time.Hour, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.cancelAfter)
				defer cancel()
				read := make(chan struct{})
				if tc.readAfter == 0 {
					close(read)
				} else {
					time.AfterFunc(tc.readAfter, func() { close(read) })
				}
				start := time.Now()
				(&driver{read: read}).waitForGPUs(ctx)
				expect.Equal(t, tc.want, time.Since(start), "waited")
			})
		})
	}
}
