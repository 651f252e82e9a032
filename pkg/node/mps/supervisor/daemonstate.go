// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// daemonState is what is known of a daemon that runs.
type daemonState struct {
	// silence is the first error of asking it, at silentSince; nil if it answers. lastAnswer
	// is the result of asking it last.
	silence, lastAnswer error
	silentSince         time.Time
	// blocked is the first error of opening its pipes, at blockedSince; nil if clients find
	// it. lastOpen is the result of opening them last.
	blocked, lastOpen error
	blockedSince      time.Time
	// closed is why no client may use the GPU at the moment, nil if they may.
	closed error
}

// answered notes the result of asking the daemon.
func (d *daemonState) answered(ctx context.Context, now time.Time, answer error) {
	logger := klog.FromContext(ctx)
	if errors.Is(answer, ErrNotAsked) {
		logger.Error(answer, "It is not known whether the MPS control daemon answers, will ask again")
		return
	}
	d.lastAnswer = answer
	switch {
	case answer == nil && d.silence != nil:
		logger.Info("The MPS control daemon answers again", "after", now.Sub(d.silentSince))
		d.silence = nil
	case answer != nil && d.silence == nil:
		logger.Error(answer, "The MPS control daemon does not answer")
		d.silence, d.silentSince = answer, now
	}
}

// openPipes leads clients to the daemon, and notes the result.
func (d *daemonState) openPipes(ctx context.Context, now time.Time, p *pipes) {
	logger := klog.FromContext(ctx)
	names, err := p.open()
	d.lastOpen = err
	switch {
	case err != nil && d.blocked == nil:
		logger.Error(err, "New clients do not find the MPS control daemon, will try again", "directory", p.dir)
		d.blocked, d.blockedSince = err, now
	case err == nil && d.blocked != nil:
		logger.Info("New clients find the MPS control daemon again", "after", now.Sub(d.blockedSince))
		d.blocked = nil
	case len(names) > 0:
		logger.Info("Clients are led to the MPS control daemon", "directory", p.dir, "made", names)
	}
}

// reconciled notes the result of reconciling the GPU with its use.
func (d *daemonState) reconciled(ctx context.Context, closed error) {
	if closed != nil && d.closed == nil {
		klog.FromContext(ctx).Error(closed, "The GPU takes no clients of MPS, will try again")
	}
	d.closed = closed
}

// state is what others are told.
func (d *daemonState) state() (state mps.State, reason string) {
	switch {
	case errors.Is(d.closed, context.DeadlineExceeded):
		return mps.Late, fmt.Sprintf("it runs and does not answer: %v", d.closed)
	case d.closed != nil:
		return mps.Down, fmt.Sprintf("it runs, but may not be used: %v", d.closed)
	case d.blocked != nil:
		return mps.Down, fmt.Sprintf("it runs, but new clients do not find it: %v", d.blocked)
	case errors.Is(d.lastAnswer, context.DeadlineExceeded):
		return mps.Late, fmt.Sprintf("it runs and does not answer: %v", d.silence)
	case d.silence != nil:
		return mps.Down, fmt.Sprintf("it runs and does not answer: %v", d.silence)
	default:
		return mps.Ready, ""
	}
}

// fatal is why the daemon has to be killed; nil if it need not.
func (d *daemonState) fatal(now time.Time) error {
	switch {
	case d.silence != nil && now.Sub(d.silentSince) >= hungLimit && errors.Is(d.lastAnswer, context.DeadlineExceeded):
		return fmt.Errorf("it ran without answering for %s and was killed: %w", hungLimit, d.lastAnswer)
	case d.blocked != nil && now.Sub(d.blockedSince) >= hungLimit && errors.Is(d.lastOpen, errNoSocket):
		return fmt.Errorf("no client could reach it for %s and it was killed: %w", hungLimit, d.lastOpen)
	default:
		return nil
	}
}
