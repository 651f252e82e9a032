// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

const (
	// serverLimit is how long a server may take to have its context on the GPU: some
	// 160 ms on an H200, and as long as anything on a node without processor time to spare.
	serverLimit = time.Minute
	// listLimit is how long the daemon may take to list it, and listAnswers how often it has said by then that there
	// is none: where each answer takes long, so does the server.
	listLimit, listAnswers = 2 * time.Second, 20
)

// server is the GPU's MPS server, which the supervisor has the daemon start before there
// is a client: it is to have the only context on the GPU.
type server struct {
	pid   int
	ended <-chan struct{}
	// forget ends that its end is watched.
	forget func()
}

// takeOver makes the GPU that of MPS, with a server on it. Clients may have had the daemon
// start one, as those of a plugin does that says nothing of the GPU's use, or not yet after
// a reboot. Neither that server nor its clients are beside MPS, and the daemon is not to
// have a second one: they go on, and from here on nobody comes beside them. Where others have some of
// the GPU since it was taken, it is given back instead, and clients have the daemon start its server.
func (k *keeper) takeOver(ctx context.Context, daemon Daemon) (closed, err error) {
	servers, closed := k.servers(ctx)
	if closed != nil {
		return closed, nil
	}
	if len(servers) == 0 {
		if closed := k.gpus.take(ctx); closed != nil || !k.gpus.held() {
			return closed, nil
		}
		return nil, k.startServer(ctx, daemon, commandStartServer)
	}
	clients, closed := k.clientsOf(ctx, servers[0])
	if closed != nil {
		return closed, nil
	}
	if closed := k.gpus.take(ctx, append(clients, servers[0])...); closed != nil || !k.gpus.held() {
		return closed, nil
	}
	klog.FromContext(ctx).Info("The GPU's MPS server that clients had started is kept", "serverPID", servers[0],
		"clients", clients)
	return nil, k.startServer(ctx, daemon, "")
}

// startServer has the daemon start the GPU's server by a command, if it has none yet, and
// waits until it serves.
func (k *keeper) startServer(ctx context.Context, daemon Daemon, command string) error {
	err := k.gpus.each(ctx, (*guard).open)
	if err != nil {
		return err
	}
	var said string
	if command != "" {
		said, err = k.ask(ctx, command)
	}
	if err == nil {
		err = k.awaitServer(ctx, daemon)
	}
	if err == nil {
		return nil
	}
	k.gpus.close(ctx)
	if said != "" {
		said = fmt.Sprintf(": the daemon said %q", said)
	}
	ctx = context.WithoutCancel(ctx)
	// A server that does not serve is not foreign. A daemon that is gone has none.
	servers, _ := k.servers(ctx)
	// Somebody else who has the GPU's only context is the likeliest reason.
	return fmt.Errorf("start the GPU's MPS server: %w%s", errors.Join(err, k.gpus.checkForeign(ctx, servers...)), said)
}

func (k *keeper) awaitServer(ctx context.Context, daemon Daemon) error {
	deadline, listed := k.Clock.After(serverLimit), k.Clock.After(listLimit)
	var last int
	for answers := 1; ; answers++ {
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
		case answers < listAnswers:
			listed = k.Clock.After(listLimit)
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
	return numbers(answer), err
}

// clientsOf are the processes of a server's clients.
func (k *keeper) clientsOf(ctx context.Context, server int) ([]int, error) {
	answer, err := k.ask(ctx, fmt.Sprintf("%s %d", commandClients, server))
	return numbers(answer), err
}

// numbers are those of a list with one in each line. What else is said there is no process.
func numbers(answer string) []int {
	var found []int
	for line := range strings.Lines(answer) {
		if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			found = append(found, n)
		}
	}
	return found
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

// clientsLimit is how long a server may go on for clients that no claim has. The processes of
// a claim have ended before the plugin unprepares it. So these are of containers whose
// records the plugin has lost: a minute is more than it needs to restore them. Or they are
// programs of the node, which may never end, and must not keep the GPU from other modes.
const clientsLimit = time.Minute

// draining is a server of a GPU that no claim uses any more.
type draining struct {
	since time.Time
	// clients is the status's reason while clients keep it from ending; empty if none do.
	clients string
}

// clientsLeft says, for people, which clients keep the GPU's server from being ended;
// empty if none do.
func (k *keeper) clientsLeft(ctx context.Context) string {
	now := k.Clock.Now()
	if k.draining.since.IsZero() {
		k.draining.since = now
	}
	if now.Sub(k.draining.since) >= clientsLimit {
		return ""
	}
	clients, err := k.clientsOf(ctx, k.server.pid)
	const waits = "no claim uses the GPU by MPS any more, but "
	until := fmt.Sprintf(": the server ends after its clients, or at %s",
		k.draining.since.Add(clientsLimit).UTC().Format(time.TimeOnly+" MST"))
	switch {
	case err != nil:
		return fmt.Sprintf(waits+"which clients its server has is not known: %v%s", err, until)
	case len(clients) > 0:
		if k.draining.clients == "" {
			klog.FromContext(ctx).Info("The GPU's MPS server goes on for clients that no claim has", "clients", clients,
				"serverPID", k.server.pid, "atMost", clientsLimit)
		}
		return waits + listed(clients) + " does" + until
	}
	return ""
}

// stopServer ends the GPU's server.
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
		k.server, k.draining = nil, draining{}
	}
}

// serverEnded is closed when the GPU's server has ended; nil if there is none.
func (k *keeper) serverEnded() <-chan struct{} {
	if k.server == nil {
		return nil
	}
	return k.server.ended
}

// limitCommands tell the daemon what to hold processes to that state no limits, and no
// process exceeds, on each of its GPUs: for the servers that it has, and for those that it
// will have. A default alone is for the next server only.
func limitCommands(limits []mps.Limits, servers []int) string {
	var commands []string
	add := func(format string, args ...any) { commands = append(commands, fmt.Sprintf(format, args...)) }
	// The daemon numbers its GPUs by itself. Limits in K are ignored without a word.
	memory := func(format string, args ...any) {
		for i, l := range limits {
			if l.MemoryMiB > 0 {
				add(format, append(slices.Clone(args), i, l.MemoryMiB)...)
			}
		}
	}
	percent := limits[0].ThreadPercent
	memory("set_default_device_pinned_mem_limit %d %dM")
	if percent > 0 {
		add("set_default_active_thread_percentage %d", percent)
	}
	for _, pid := range servers {
		memory("set_device_pinned_mem_limit %d %d %dM", pid)
		if percent > 0 {
			add("set_active_thread_percentage %d %d", pid, percent)
		}
	}
	return strings.Join(commands, "\n")
}
