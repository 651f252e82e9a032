// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// DefaultCallTimeout is how long one NVML call may take unless told otherwise.
// NVML answers within milliseconds; a call that takes seconds waits for a GPU
// that does not answer.
const DefaultCallTimeout = 10 * time.Second

func newCalls(timeout time.Duration) *bounded.Calls { return bounded.New("NVML", orDefault(timeout)) }

func orDefault(timeout time.Duration) time.Duration {
	if timeout == 0 {
		return DefaultCallTimeout
	}
	return timeout
}

// ask makes one NVML call.
func ask[T any](ctx context.Context, c *bounded.Calls, what string, call func() (T, nvml.Return)) (T, error) {
	return bounded.Try(ctx, c, what, orError(call))
}

// askWithin makes one NVML call, with a timeout of its own.
func askWithin[T any](
	ctx context.Context, c *bounded.Calls, limit time.Duration, what string, call func() (T, nvml.Return),
) (T, error) {
	return bounded.TryWithin(ctx, c, limit, what, orError(call))
}

func orError[T any](call func() (T, nvml.Return)) func() (T, error) {
	return func() (T, error) {
		value, ret := call()
		if ret != nvml.SUCCESS {
			return value, ret
		}
		return value, nil
	}
}

// do makes one NVML call that only returns how it went.
func do(ctx context.Context, c *bounded.Calls, what string, call func() nvml.Return) error {
	_, err := bounded.Try(ctx, c, what, func() (struct{}, error) { return struct{}{}, result(call()) })
	return err
}

// result is the error of a call that only returns how it went.
func result(ret nvml.Return) error {
	if ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// unsupported reports whether the error only means that this GPU, this driver or
// this library does not have what was asked for.
func unsupported(err error) bool {
	return errors.Is(err, nvml.ERROR_NOT_SUPPORTED) || errors.Is(err, nvml.ERROR_FUNCTION_NOT_FOUND)
}

// gone reports whether the error means that the GPU answers no more.
func gone(err error) bool {
	return errors.Is(err, nvml.ERROR_GPU_IS_LOST) || errors.Is(err, bounded.ErrHung) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
