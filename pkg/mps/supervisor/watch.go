package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

const (
	// lookInterval is how soon the way to a daemon is open again for clients that
	// find it blocked. Those who start containers look for themselves
	// (mps.Dir.Check).
	lookInterval = 500 * time.Millisecond

	// askInterval is how often a daemon is asked whether it still answers. It is
	// not more often because each time takes a process, and because a daemon that
	// does not answer makes its new clients wait; it does not let them run
	// without limits.
	askInterval = 10 * time.Second

	// hungLimit is how long a daemon may be silent before it is killed, and with
	// it its clients, which may get on without it. Nothing new is started
	// meanwhile. One that was asked in vain for another reason is not killed: it
	// may be the control program that is at fault, of another version after an
	// upgrade of the driver.
	hungLimit = time.Minute
)

// watch returns when the daemon has ended, or had to be ended.
func (k *keeper) watch(ctx context.Context, daemon Daemon, kept *pipes) error {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, 1)
	asked, pending := k.Clock.Now(), false
	var silentSince time.Time // zero if it answers
	for {
		select {
		case <-daemon.Done():
			return daemon.Err()
		case <-ctx.Done():
			return k.quit(ctx, daemon)
		case err := <-answers:
			pending = false
			if silentSince, err = k.heard(ctx, silentSince, err); err != nil {
				return errors.Join(err, end(daemon))
			}
		case <-k.Clock.After(lookInterval):
			if err := k.keepOpen(ctx, kept); err != nil {
				return errors.Join(err, end(daemon))
			}
			if pending || silentSince.IsZero() && k.Clock.Since(asked) < askInterval {
				continue
			}
			k.boundLogs(ctx)
			asked, pending = k.Clock.Now(), true
			// Beside this loop, for an end is told at once.
			go func() {
				_, err := k.ask(asking, commandProbe)
				answers <- err
			}()
		}
	}
}

// heard goes by whether the daemon has answered. It returns since when the
// daemon is silent, zero if it is not, and an error when it is to be given up.
func (k *keeper) heard(ctx context.Context, silentSince time.Time, answer error) (time.Time, error) {
	logger := klog.FromContext(ctx)
	switch {
	case errors.Is(answer, ErrNotAsked):
		logger.Error(answer, "It is not known whether the MPS control daemon answers, will ask again")
		return silentSince, nil
	case answer == nil && silentSince.IsZero():
		return silentSince, nil
	case answer == nil:
		logger.Info("The MPS control daemon answers again", "after", k.Clock.Since(silentSince))
		return time.Time{}, k.say(ctx, mps.Ready, "")
	case silentSince.IsZero():
		logger.Error(answer, "The MPS control daemon does not answer")
		return k.Clock.Now(), k.say(ctx, mps.Down, fmt.Sprintf("it runs and does not answer: %v", answer))
	case k.Clock.Since(silentSince) >= hungLimit && errors.Is(answer, context.DeadlineExceeded):
		return silentSince, fmt.Errorf("it ran without answering for %s and was killed: %w", hungLimit, answer)
	default:
		return silentSince, nil
	}
}

// keepOpen makes the pipe directory lead to the daemon.
func (k *keeper) keepOpen(ctx context.Context, kept *pipes) error {
	names, err := kept.putBack()
	if err != nil {
		return err
	}
	if len(names) > 0 {
		klog.FromContext(ctx).Info("A program, in a container of this card most likely, removed or changed files of the MPS control daemon, they are put back", "directory", kept.dir, "files", names)
	}
	return nil
}

func (k *keeper) boundLogs(ctx context.Context) {
	if err := boundLogs(k.Dir.LogDir(k.uuid)); err != nil {
		klog.FromContext(ctx).Error(err, "The MPS control daemon's logs could not be kept small")
	}
}
