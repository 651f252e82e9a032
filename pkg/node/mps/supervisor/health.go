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

// health is what is known of a daemon that runs.
type health struct {
	// silence is why it was first asked in vain, since silentSince; nil if it answers.
	// lastAnswer is what came of it when it was asked last.
	silence, lastAnswer error
	silentSince         time.Time
	// blocked is why clients could not be led to it, since blockedSince; nil if they
	// find it. lastLook is what came of the last attempt.
	blocked, lastLook error
	blockedSince      time.Time
	// closed is why no client may use the card at the moment, nil if they may.
	closed error
}

// heard takes in what came of asking the daemon.
func (h *health) heard(ctx context.Context, now time.Time, answer error) {
	logger := klog.FromContext(ctx)
	if errors.Is(answer, ErrNotAsked) {
		logger.Error(answer, "It is not known whether the MPS control daemon answers, will ask again")
		return
	}
	h.lastAnswer = answer
	switch {
	case answer == nil && h.silence != nil:
		logger.Info("The MPS control daemon answers again", "after", now.Sub(h.silentSince))
		h.silence = nil
	case answer != nil && h.silence == nil:
		logger.Error(answer, "The MPS control daemon does not answer")
		h.silence, h.silentSince = answer, now
	}
}

// looked leads clients to the daemon, and takes in what came of it.
func (h *health) looked(ctx context.Context, now time.Time, p *pipes) {
	logger := klog.FromContext(ctx)
	names, err := p.open()
	h.lastLook = err
	switch {
	case err != nil && h.blocked == nil:
		logger.Error(err, "New clients do not find the MPS control daemon, will try again", "directory", p.dir)
		h.blocked, h.blockedSince = err, now
	case err == nil && h.blocked != nil:
		logger.Info("New clients find the MPS control daemon again", "after", now.Sub(h.blockedSince))
		h.blocked = nil
	case len(names) > 0:
		logger.Info("Clients are led to the MPS control daemon", "directory", p.dir, "made", names)
	}
}

// followed takes in what came of bringing the card in line with its use.
func (h *health) followed(ctx context.Context, closed error) {
	if closed != nil && h.closed == nil {
		klog.FromContext(ctx).Error(closed, "The GPU takes no clients of MPS, will try again")
	}
	h.closed = closed
}

// state is what others are told.
func (h *health) state() (state mps.State, reason string) {
	switch {
	case h.closed != nil:
		return mps.Down, fmt.Sprintf("it runs, but may not be used: %v", h.closed)
	case h.blocked != nil:
		return mps.Down, fmt.Sprintf("it runs, but new clients do not find it: %v", h.blocked)
	case h.silence != nil:
		return mps.Down, fmt.Sprintf("it runs and does not answer: %v", h.silence)
	default:
		return mps.Ready, ""
	}
}

// hopeless is why the daemon is to be given up, nil if it is not.
func (h *health) hopeless(now time.Time) error {
	switch {
	case h.silence != nil && now.Sub(h.silentSince) >= hungLimit && errors.Is(h.lastAnswer, context.DeadlineExceeded):
		return fmt.Errorf("it ran without answering for %s and was killed: %w", hungLimit, h.lastAnswer)
	case h.blocked != nil && now.Sub(h.blockedSince) >= hungLimit && errors.Is(h.lastLook, errNoSocket):
		return fmt.Errorf("no client could reach it for %s and it was killed: %w", hungLimit, h.lastLook)
	default:
		return nil
	}
}
