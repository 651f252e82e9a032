// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A program that the kernel holds is waited for as long as one that was killed may take.
func TestProgramThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if ended, err := await(ctx, make(chan error)); ended || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended: %t, %v", ended, err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("it was waited for for %s", took)
		}
		answered := make(chan error, 1)
		answered <- errors.New("killed")
		if ended, err := await(ctx, answered); !ended || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that was killed: %t, %v", ended, err)
		}
	})
}
