// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

const (
	// serverLimit is how long a server may take to have its context on the card: some
	// 160 ms on an H200.
	serverLimit = 10 * time.Second
	// listLimit is how long the daemon may take to list it.
	listLimit = 2 * time.Second
)

// server is the card's MPS server, which the supervisor has the daemon start before there
// is a client: it is to have the only context on the card.
type server struct {
	pid   int
	ended <-chan struct{}
	// forget ends that its end is watched.
	forget func()
}

// startServer has the daemon start the card's server, and waits until it serves.
func (k *keeper) startServer(ctx context.Context, daemon Daemon) error {
	if err := k.guard.open(ctx); err != nil {
		return err
	}
	said, err := k.ask(ctx, commandStartServer)
	if err == nil {
		err = k.awaitServer(ctx, daemon)
	}
	if err == nil {
		return nil
	}
	k.guard.close(ctx)
	if said != "" {
		said = fmt.Sprintf(": the daemon said %q", said)
	}
	// Somebody else who has the card's only context is the likeliest reason.
	return fmt.Errorf("start the GPU's MPS server: %w%s", errors.Join(err, k.guard.strangers(context.WithoutCancel(ctx))),
		said)
}

func (k *keeper) awaitServer(ctx context.Context, daemon Daemon) error {
	deadline, listed := k.Clock.After(serverLimit), k.Clock.After(listLimit)
	var last int
	for {
		pid, serves, err := k.newServer(ctx)
		switch {
		case err != nil:
			return err
		case serves:
			return k.watchServer(ctx, pid)
		case pid == 0 && last != 0:
			return fmt.Errorf("process %d has ended before it served", last)
		case pid != 0:
			last, listed = pid, nil
		}
		select {
		case <-daemon.Gone():
			return k.gone(ctx, daemon)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-listed:
			return fmt.Errorf("the daemon lists none %s after it was told to start one", listLimit)
		case <-deadline:
			return fmt.Errorf("process %d does not serve %s after its start", last, serverLimit)
		case <-k.Clock.After(probeInterval):
		}
	}
}

// newServer is the process of the server that was started, 0 while the daemon lists none,
// and whether it serves.
func (k *keeper) newServer(ctx context.Context) (pid int, serves bool, err error) {
	pids, err := k.servers(ctx)
	if err != nil || len(pids) == 0 {
		return 0, false, err
	}
	status, err := k.ask(ctx, fmt.Sprintf("%s %d", commandServerStatus, pids[0]))
	switch {
	case err != nil:
		return 0, false, err
	case strings.Contains(status, "INITIALIZING"):
		return pids[0], false, nil
	case strings.Contains(status, "FAULT"):
		return 0, false, fmt.Errorf("process %d is in status %q", pids[0], status)
	}
	return pids[0], true, nil
}

// servers are the processes of the daemon's servers.
func (k *keeper) servers(ctx context.Context) ([]int, error) {
	answer, err := k.ask(ctx, commandProbe)
	if err != nil {
		return nil, err
	}
	var pids []int
	for word := range strings.FieldsSeq(answer) {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (k *keeper) watchServer(ctx context.Context, pid int) error {
	ended, forget, err := k.Control.Watch(pid)
	if err != nil {
		return fmt.Errorf("watch the GPU's MPS server: %w", err)
	}
	k.server = &server{pid: pid, ended: ended, forget: forget}
	klog.FromContext(ctx).Info("The GPU's MPS server runs and keeps others from it", "serverPID", pid)
	return nil
}

// stopServer ends the card's server, which has no clients.
func (k *keeper) stopServer(ctx context.Context) error {
	s := k.server
	defer k.forgetServer()
	if _, err := k.ask(ctx, fmt.Sprintf("%s %d", commandStopServer, s.pid)); err != nil {
		return err
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-k.Clock.After(quitLimit):
		return fmt.Errorf("the GPU's MPS server, process %d, does not end %s after it was told to", s.pid, quitLimit)
	}
}

func (k *keeper) forgetServer() {
	if k.server != nil {
		k.server.forget()
		k.server = nil
	}
}

// serverEnded is closed when the card's server has ended; nil if there is none.
func (k *keeper) serverEnded() <-chan struct{} {
	if k.server == nil {
		return nil
	}
	return k.server.ended
}

// limitCommands tell the daemon what to hold processes to that state no limits, and no
// process exceeds: for the servers that it has, and for those that it will have. A
// default alone is for the next server only.
func limitCommands(l mps.Limits, servers []int) string {
	var commands []string
	add := func(format string, args ...any) { commands = append(commands, fmt.Sprintf(format, args...)) }
	if l.MemoryMiB > 0 {
		// The daemon has one card, its number 0. Limits in K are ignored without a word.
		add("set_default_device_pinned_mem_limit 0 %dM", l.MemoryMiB)
	}
	if l.ThreadPercent > 0 {
		add("set_default_active_thread_percentage %d", l.ThreadPercent)
	}
	for _, pid := range servers {
		if l.MemoryMiB > 0 {
			add("set_device_pinned_mem_limit %d 0 %dM", pid, l.MemoryMiB)
		}
		if l.ThreadPercent > 0 {
			add("set_active_thread_percentage %d %d", pid, l.ThreadPercent)
		}
	}
	return strings.Join(commands, "\n")
}
