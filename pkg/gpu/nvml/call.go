package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// DefaultCallTimeout is how long one NVML call may take unless told otherwise.
// NVML answers within milliseconds; a call that takes seconds waits for a card
// that does not answer.
const DefaultCallTimeout = 10 * time.Second

// errHung is the cause of every error about a call that did not return.
var errHung = errors.New("NVML did not answer in time")

// calls makes NVML calls on one card, or on the library itself, and gives them
// up after a timeout. After the first call that hangs no other is made: what
// it waits for, the next one would wait for too.
type calls struct {
	timeout time.Duration
	hung    error
}

// ask makes one call. A call that hangs goes on in a goroutine of its own,
// which ends when NVML returns, if ever.
func ask[T any](ctx context.Context, c *calls, what string, call func() (T, nvml.Return)) (T, error) {
	return try(ctx, c, what, func() (T, error) {
		value, ret := call()
		if ret != nvml.SUCCESS {
			return value, ret
		}
		return value, nil
	})
}

// try is ask for functions that return an error.
func try[T any](ctx context.Context, c *calls, what string, call func() (T, error)) (T, error) {
	var none T
	if c.hung != nil {
		return none, fmt.Errorf("%s: not tried after %w", what, c.hung)
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := call()
		answers <- answer{value, err}
	}()
	timeout := time.NewTimer(c.timeout)
	defer timeout.Stop()
	select {
	case a := <-answers:
		if a.err != nil {
			return none, fmt.Errorf("%s: %w", what, a.err)
		}
		return a.value, nil
	case <-timeout.C:
		c.hung = fmt.Errorf("%s: %w (%s)", what, errHung, c.timeout)
		return none, c.hung
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
}

// unsupported says whether the error only means that this card, this driver or
// this library does not have what was asked for.
func unsupported(err error) bool {
	return errors.Is(err, nvml.ERROR_NOT_SUPPORTED) || errors.Is(err, nvml.ERROR_FUNCTION_NOT_FOUND)
}

// gone says whether the error means that the card answers no more.
func gone(err error) bool {
	return errors.Is(err, nvml.ERROR_GPU_IS_LOST) || errors.Is(err, errHung) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
