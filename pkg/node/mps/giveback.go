// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// giveBackLimit outlasts what the supervisor takes to end the GPUs' MPS servers and to put
// their compute modes back: milliseconds.
const giveBackLimit = 5 * time.Second

// GiveBack is for the plugin: it has the supervisor put back the GPUs' compute modes, and waits
// for that, as every program that is no client of MPS fails until then. GPUs whose mode the
// supervisor has not changed take no time. The caller sees to it that no claim uses the
// GPUs by MPS, or is about to.
func (d Dir) GiveBack(ctx context.Context, uuids ...string) error {
	dirs := []Dir{d.root(), d.OfNode()}
	for _, uuid := range uuids {
		for _, d := range dirs {
			_, changed, err := d.FoundMode(uuid)
			if err == nil && changed {
				err = d.SetUse(uuid, Use{})
			}
			if err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, giveBackLimit, fmt.Errorf("waited for %s", giveBackLimit))
	defer cancel()
	for _, uuid := range uuids {
		for _, d := range dirs {
			if err := d.awaitGivenBack(ctx, uuid); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d Dir) awaitGivenBack(ctx context.Context, uuid string) error {
	for p := (pause{}); ; {
		found, changed, err := d.FoundMode(uuid)
		if err != nil || !changed {
			return err
		}
		if err := p.wait(ctx); err != nil {
			return d.notGivenBack(uuid, found, err)
		}
	}
}

func (d Dir) notGivenBack(uuid string, found gpu.ComputeMode, late error) error {
	why := d.checkSupervised()
	if why == nil {
		why = errors.New("gpu-mps-supervisor has not put its compute mode back: see its log")
	}
	return fmt.Errorf("GPU %s is still closed to programs that do not use MPS (%w): %w; on a node that is to have no "+
		"supervisor, run nvidia-smi --id=%s --compute-mode=%s, and remove %s",
		uuid, late, why, uuid, found, d.foundFile(uuid))
}

// pauseFirst and pauseMost bound how often the supervisor's files are read while something
// is waited for.
const (
	pauseFirst = time.Millisecond
	pauseMost  = 20 * time.Millisecond
)

// pause waits longer each time.
type pause struct{ last time.Duration }

// wait returns an error if ctx ends.
func (p *pause) wait(ctx context.Context) error {
	p.last = min(max(2*p.last, pauseFirst), pauseMost)
	timer := time.NewTimer(p.last)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
