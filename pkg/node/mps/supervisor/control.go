// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
)

// Control runs NVIDIA's MPS control program (pkg/node/mps/control, or a fake).
type Control interface {
	// Start starts the control daemon of the GPU. Its own pipe directory and its log
	// directory exist, and the pipe directory is empty.
	Start(uuid string) (Daemon, error)
	// Ask gives the GPU's daemon a command, or several lines of them, and returns what it answered. The
	// error wraps the context's if the daemon was silent until the context ended,
	// and ErrNotAsked if it says nothing about the daemon.
	Ask(ctx context.Context, uuid, command string) (string, error)
	// Watch closes ended when the process has, which need not be a child of this one. It
	// does not any more when forget was called.
	Watch(pid int) (ended <-chan struct{}, forget func(), err error)
}

// ErrNotAsked is that the control program could not be run to ask a daemon, as
// while the driver's files are being replaced.
var ErrNotAsked = errors.New("the daemon could not be asked")

// Daemon is a control daemon that was started.
type Daemon interface {
	// PID is its process.
	PID() int
	// Gone is closed as soon as the daemon has ended. What it has started runs until it is
	// killed, but not for long.
	Gone() <-chan struct{}
	// Done is closed when the daemon, and what it has started, has ended.
	Done() <-chan struct{}
	// Err says how the daemon ended and what it said last. It is asked when
	// Done is closed.
	Err() error
	// Kill ends the daemon and what it has started, at once.
	Kill() error
}

// The commands the supervisor uses, of those the daemon knows. Beside these it sets
// limits, see limitCommands.
const (
	commandProbe        = "get_server_list" // answered by every daemon, and changes nothing
	commandServerStatus = "get_server_status"
	commandClients      = "get_client_list"     // of a server
	commandStartServer  = "start_server -uid 0" // the server is for clients of all users
	commandStopServer   = "shutdown_server"
	commandQuit         = "quit" // waits for the clients
)
