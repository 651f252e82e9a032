// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

const (
	// A daemon answers 17 ms after its start (measured on an H200).
	// On a node without processor time to spare it takes as long as its containers may take to start.
	probeInterval = 20 * time.Millisecond
	startLimit    = time.Minute

	// askLimit bounds one command, which takes 3 ms: a daemon that takes longer is late.
	askLimit = 5 * time.Second
	// endLimit is how long a daemon may take to end that was killed. One that the kernel
	// does not let end must not keep the supervisor from the daemons of other GPUs.
	endLimit = 5 * time.Second
	// quitLimit is how long a daemon may take to quit, which takes 60 ms
	// without clients, and for ever with.
	quitLimit = 5 * time.Second

	// steadyAfter is how long a daemon has to run for its end to be a first one
	// again. One that cannot start is given up before.
	steadyAfter = 2 * time.Minute

	stopping = "gpu-mps-supervisor is being stopped, and its daemons with it"
	stopped  = "gpu-mps-supervisor was stopped"
	nodeIdle = "nothing on the node uses MPS, so no MPS control daemon runs: it is started when a mode with MPS is " +
		"asked for"
)

// restartBackoff is the wait before each next start of a daemon that keeps
// ending: from 1 s, doubled up to 30 s.
func restartBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Cap: 30 * time.Second, Steps: 6}
}

// keeper keeps a control daemon running: that of one GPU, or of several.
type keeper struct {
	Options
	gpus gpus
	// devices are the UUIDs of the GPUs, with commas: what Control knows the daemon by.
	devices  string
	backoff  wait.Backoff
	restarts int
	socket   *mps.Socket // of the daemon that runs
	server   *server     // nil where the supervisor has started none
	draining draining
	clients  clients
	// undead is a daemon that was killed and has not ended; nil if there is none.
	undead Daemon
	// waits says that the daemon is not started, since the GPUs cannot be made ready for it now.
	waits atomic.Bool
	// closed says that it runs, and that the GPUs may not be used.
	closed atomic.Bool
	// foreignSeen says that the last daemon ended because foreign processes were on a GPU.
	foreignSeen bool
	// useChanged is signalled when the use may have changed.
	useChanged <-chan struct{}
}

// newKeeper is for the daemon of these GPUs.
func newKeeper(opts Options, gpus ...servedGPU) *keeper {
	k := &keeper{Options: opts, backoff: restartBackoff()}
	var uuids []string
	for _, c := range gpus {
		uuids = append(uuids, c.uuid)
		k.gpus = append(k.gpus, &served{uuid: c.uuid, guard: &guard{dir: opts.Dir, uuid: c.uuid, device: c.device}})
	}
	k.devices = strings.Join(uuids, ",")
	return k
}

// run returns when the context has ended and the daemon is stopped, or with a statusError.
func (k *keeper) run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	var forget func()
	k.useChanged, forget = watchUse(ctx, k.Dir, k.gpus)
	defer forget()
	defer k.finish(ctx)
	reason := "it has not been started yet"
	for {
		if err := k.setStatus(ctx, mps.Starting, reason); err != nil {
			return err
		}
		began := k.Clock.Now()
		failure := k.serve(ctx)
		k.closed.Store(false)
		k.forgetServer()
		k.forgetUses()
		k.gpus.close(ctx)
		if errors.As(failure, new(statusError)) {
			return failure
		}
		if ctx.Err() != nil {
			return k.setStatus(ctx, mps.Down, whyEnded(ctx, stopped))
		}
		if k.Clock.Since(began) >= steadyAfter {
			k.backoff = restartBackoff()
		}
		if err := k.setStatus(ctx, mps.Down, failure.Error()); err != nil {
			return err
		}
		k.awaitEnd(ctx)
		delay := lookInterval
		if k.foreignSeen = errors.Is(failure, errForeign); !k.foreignSeen {
			delay = k.backoff.Step()
		}
		logger.Error(failure, "The MPS control daemon is down, will start it again", "after", delay)
		select {
		case <-ctx.Done():
			return k.setStatus(ctx, mps.Down, whyEnded(ctx, stopped))
		case <-k.Clock.After(delay):
		}
		k.restarts++
		reason = "it is being started again: " + failure.Error()
	}
}

// serve runs the daemon once, until it ends or the context does. No daemon is
// left when it returns, but for one that the kernel does not let end.
func (k *keeper) serve(ctx context.Context) error {
	if err := prepareDirs(ctx, k.Dir, k.devices); err != nil {
		return err
	}
	if err := k.awaitComputeMode(ctx); err != nil {
		return err
	}
	daemon, err := k.Control.Start(k.devices)
	if err != nil {
		return err
	}
	if err := k.awaitAnswer(ctx, daemon); err != nil {
		return errors.Join(err, k.end(daemon))
	}
	if err := k.limitFirst(ctx); err != nil {
		return errors.Join(err, k.end(daemon))
	}
	pipes, err := pipesOf(k.Dir, k.devices)
	if err != nil {
		return errors.Join(err, k.end(daemon))
	}
	k.socket = &pipes.socket
	klog.FromContext(ctx).Info("The MPS control daemon runs and answers", "pid", daemon.PID(), "restarts",
		k.restarts)
	return k.watch(ctx, daemon, pipes)
}

// awaitAnswer waits until the daemon answers a command.
func (k *keeper) awaitAnswer(ctx context.Context, daemon Daemon) error {
	deadline := k.Clock.After(startLimit)
	for {
		_, err := k.ask(ctx, commandProbe)
		if err == nil {
			return nil
		}
		select {
		case <-daemon.Gone():
			return k.gone(ctx, daemon)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("it does not answer %s after its start: %w", startLimit, err)
		case <-k.Clock.After(probeInterval):
		}
	}
}

// quit lets the daemon end by itself, for as long as quitLimit. A container that
// is started meanwhile may come to use CUDA only when the daemon has ended, so
// everybody is told before.
func (k *keeper) quit(ctx context.Context, daemon Daemon) error {
	if err := k.setStatus(ctx, mps.Down, whyEnded(ctx, stopping)); err != nil {
		return errors.Join(err, k.end(daemon))
	}
	k.gpus.close(ctx)
	deadline := k.Clock.After(quitLimit)
	if _, err := k.ask(context.WithoutCancel(ctx), commandQuit); err != nil {
		klog.FromContext(ctx).Error(err, "The MPS control daemon does not quit, it is killed")
		return k.end(daemon)
	}
	select {
	case <-daemon.Gone():
		return k.end(daemon)
	case <-deadline:
		klog.FromContext(ctx).Info("The MPS control daemon waits for its clients, it is killed", "after", quitLimit)
		return k.end(daemon)
	}
}

// gone is how a daemon has ended. Nobody comes in when its server goes, which has the GPU's
// only context until then.
func (k *keeper) gone(ctx context.Context, daemon Daemon) error {
	k.gpus.close(ctx)
	told := k.setStatus(ctx, mps.Down, "it has ended, and what it has started is being ended")
	if err := errors.Join(told, k.end(daemon)); err != nil {
		return err
	}
	return daemon.Err()
}

// down ends a daemon that is to serve nobody any more, for this reason. It is told before, as the
// end may take its time.
func (k *keeper) down(ctx context.Context, daemon Daemon, why error) error {
	told := k.setStatus(ctx, mps.Down, why.Error())
	return errors.Join(why, told, k.end(daemon))
}

// whyEnded is why a daemon's context has ended: the supervisor's end, unless nothing uses
// the daemon, or it is to serve other GPUs.
func whyEnded(ctx context.Context, supervisor string) string {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errNodeIdle):
		return nodeIdle
	case errors.Is(cause, errMoreGPUs), errors.Is(cause, errGPULost):
		return cause.Error()
	}
	return supervisor
}

func (k *keeper) ask(ctx context.Context, command string) (string, error) {
	return k.askFor(ctx, askLimit, command)
}

func (k *keeper) askFor(ctx context.Context, limit time.Duration, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return k.Control.Ask(ctx, k.devices, command)
}

// end kills the daemon and waits for its end, for as long as endLimit.
func (k *keeper) end(daemon Daemon) error {
	if err := daemon.Kill(); err != nil {
		return fmt.Errorf("kill the MPS control daemon: %w", err)
	}
	select {
	case <-daemon.Done():
		return nil
	default:
	}
	select {
	case <-daemon.Done():
		return nil
	case <-k.Clock.After(endLimit):
	}
	k.undead = daemon
	return fmt.Errorf("the MPS control daemon, process %d, or what it has started does not end %s after it was killed: "+
		"the kernel holds it, as for a GPU that does not answer; see dmesg, reset the GPU or reboot the node",
		daemon.PID(), endLimit)
}

// awaitEnd waits for the end of the daemon that would not end: no other is started beside it.
func (k *keeper) awaitEnd(ctx context.Context) {
	if k.undead == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-k.undead.Done():
		k.undead = nil
		klog.FromContext(ctx).Info("The MPS control daemon that was killed has ended")
	}
}

// statusError is that the status could be neither written nor removed. The supervisor has to
// end then: readers see by its locks that no status holds any more.
type statusError struct{ error }

func (e statusError) Unwrap() error { return e.error }
