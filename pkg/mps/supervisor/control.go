package supervisor

import "context"

// Control runs NVIDIA's MPS control program (pkg/mps/control, or a fake).
type Control interface {
	// Start starts the control daemon of the card. Its pipe and log directory
	// exist, and the pipe directory is empty.
	Start(uuid string) (Daemon, error)
	// Ask gives the card's daemon a command and returns what it answered. It is
	// an error if no daemon answers before the context ends.
	Ask(ctx context.Context, uuid, command string) (string, error)
}

// Daemon is a control daemon that was started.
type Daemon interface {
	// PID is its process.
	PID() int
	// Done is closed as soon as the daemon, and what it has started, has ended.
	Done() <-chan struct{}
	// Err says how the daemon ended and what it said last. It is asked when
	// Done is closed.
	Err() error
	// Kill ends the daemon and what it has started, at once.
	Kill() error
}

// The commands the supervisor uses, of those the daemon knows.
const (
	commandProbe = "get_server_list" // answered by every daemon, and changes nothing
	commandQuit  = "quit"            // waits for the clients
)
