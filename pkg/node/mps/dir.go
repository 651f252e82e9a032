// SPDX-License-Identifier: Apache-2.0

// Package mps is what the plugin and gpu-mps-supervisor have in common. The supervisor runs
// the control daemons of NVIDIA's Multi-Process Service, one per GPU or one for all, so that
// an upgrade of the plugin ends no client. The two know of each other only through a
// directory on the host: see Dir.
package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// MaxClients is how many client processes one GPU's server takes: of 64
// started on an H200, 48 connected.
const MaxClients = 48

// DefaultHostDir is the directory on the host that supervisor and plugin share. A
// reboot ends the daemons, and removes what it has of them.
const DefaultHostDir = "/run/gpushare/mps"

// Dir is the shared directory, as the process that uses it sees it:
//
//	idle.lock, in-use.lock    locked by plugins that declare this
//	supervisor.lock           locked by the only supervisor
//	serving.lock              locked by it as soon as nothing of an earlier one is left
//	<UUID>/use.json           what the GPU is used for by MPS, as the plugin says
//	<UUID>/status.json        what became of the GPU's daemon
//	<UUID>/compute-mode.json  the GPU's compute mode, where the supervisor changed it
//	<UUID>/containers.json    the containers that have shares of the GPU
//	<UUID>/waiting            the containers whose start waits for the daemon
//	<UUID>/pipe               what clients have for a pipe directory: a link to its socket
//	<UUID>/daemon             the daemon's own pipe directory
//	<UUID>/log                the daemon's log directory
//	mps-node                  the same of a daemon for all GPUs, see OfNode
type Dir string

// State is what a GPU's daemon is doing.
type State string

// The states of a daemon.
const (
	Starting State = "Starting"
	Ready    State = "Ready" // it answers; new clients are served and limited
	Late     State = "Late"  // it runs and does not answer in time, as on a node without processor time to spare
	Down     State = "Down"  // it has ended, could not be started, may not be used, or is about to end
)

// Status is that of a GPU's daemon, as the supervisor knows it.
type Status struct {
	State State `json:"state"`
	// Reason says why the daemon is not Ready, for people. Of a Ready one it says which
	// clients keep its server from ending although no claim uses it.
	Reason string `json:"reason,omitempty"`
	// Since is when the state was entered.
	Since time.Time `json:"since"`
	// Restarts counts how often the daemon ended and was started again.
	Restarts int `json:"restarts,omitempty"`
	// Socket is where clients reach a Ready daemon. It is nil if that is not
	// known, as of a supervisor of an earlier version.
	Socket *Socket `json:"socket,omitempty"`
	// DriverEnforced says that the kernel driver keeps programs from the GPU that are no
	// clients of its MPS server, whenever the GPU's Use is Guarded.
	DriverEnforced bool `json:"driverEnforced,omitempty"`
	// Use is what the daemon is set up for. It is nil if that is not known, as of a
	// supervisor of an earlier version.
	Use *Use `json:"use,omitempty"`
	// InForce are the limits that the daemon holds all processes to, and zero where it was
	// told none.
	InForce Limits `json:"inForce,omitzero"`
	// Fault is the last fatal fault of a client, also after the daemon was started again for it; nil for none.
	Fault *Fault `json:"fault,omitempty"`
}

// PipeDir is the GPU's pipe directory as its clients have it.
func (d Dir) PipeDir(uuid string) string { return filepath.Join(d.daemon(uuid), "pipe") }

// DaemonDir is the pipe directory of the GPU's daemon. No container has it mounted.
func (d Dir) DaemonDir(uuid string) string { return filepath.Join(d.daemon(uuid), "daemon") }

// LogDir is the directory of the GPU's daemon's logs.
func (d Dir) LogDir(uuid string) string { return filepath.Join(d.daemon(uuid), "log") }

// SpareLink is where the supervisor makes a link before it takes the place of another.
func (d Dir) SpareLink(uuid string) string { return filepath.Join(d.daemon(uuid), "link") }

// Files is the directory with what plugin and supervisor say of the GPU.
func (d Dir) Files(uuid string) string { return d.gpu(uuid) }

func (d Dir) gpu(uuid string) string { return filepath.Join(string(d), uuid) }

func (d Dir) statusFile(uuid string) string { return filepath.Join(d.gpu(uuid), "status.json") }

// SupervisorLock is the file that the supervisor has locked as long as it runs (Hold).
func (d Dir) SupervisorLock() string { return filepath.Join(string(d.root()), "supervisor.lock") }

func (d Dir) servingFile() string { return filepath.Join(string(d.root()), "serving.lock") }

// Check reports why a new client of the GPU's daemon would not be limited, nil if it
// would be. It holds for this moment: the supervisor writes the status as soon as a daemon
// ends, its own end unlocks its locks, and Check looks at the daemon's socket. That a daemon
// does not answer shows when the supervisor has asked it, every ten seconds.
func (d Dir) Check(uuid string) error {
	if err := d.checkSupervised(); err != nil {
		return err
	}
	s, err := d.Status(uuid)
	if err != nil {
		return err
	}
	if s.State != Ready {
		return fmt.Errorf("the GPU's MPS control daemon is %s: %s", s.State, s.Reason)
	}
	if s.Socket == nil {
		return nil
	}
	return s.Socket.check(d, uuid)
}

// DriverEnforced is that of the GPU's Status; false if that cannot be read.
func (d Dir) DriverEnforced(uuid string) bool {
	s, err := d.Status(uuid)
	return err == nil && s.DriverEnforced
}

// Status is what the supervisor last wrote about the GPU's daemon.
func (d Dir) Status(uuid string) (Status, error) {
	s, there, err := read[Status](d.statusFile(uuid), "read the status of the GPU's MPS control daemon")
	if err == nil && !there {
		err = errors.New("gpu-mps-supervisor serves no MPS control daemon for this GPU: see its log")
	}
	if err != nil {
		return Status{}, err
	}
	return s, nil
}

// Served lists the GPUs that have a Status.
func (d Dir) Served() ([]string, error) { return gpusWith(d.statusFile("*")) }

// SetStatus is for the supervisor: it writes what Status reads.
func (d Dir) SetStatus(uuid string, s Status) error {
	return write(d.statusFile(uuid), "tell the status of the GPU's MPS control daemon", s)
}

// Forget is for the supervisor: it removes the GPU's status, which readers take for a daemon
// that is not there. It works where SetStatus does not, as on a full file system.
func (d Dir) Forget(uuid string) error {
	if err := atomicfile.Remove(d.statusFile(uuid)); err != nil {
		return fmt.Errorf("forget the status of the GPU's MPS control daemon: %w", err)
	}
	return nil
}

// forgetAll removes the statuses of an earlier supervisor. The GPUs' directories stay:
// containers may have a pipe directory mounted, and would not see another one in its place.
func (d Dir) forgetAll() error {
	uuids, err := d.Served()
	for _, uuid := range uuids {
		err = errors.Join(err, d.Forget(uuid))
	}
	return err
}

// Hold is for the supervisor: it makes the process the directory's only supervisor until
// release is called or the process ends. It fails if there is another. Statuses of an earlier
// supervisor are removed before anybody can take them for this one's.
func (d Dir) Hold() (release func() error, err error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory that supervisor and plugin share: %w", err)
	}
	only, err := lock(d.SupervisorLock(), os.O_RDWR|os.O_CREATE, unix.LOCK_EX, 0)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("another gpu-mps-supervisor runs on this node: %s is held", d.SupervisorLock())
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.forgetAll(), d.OfNode().forgetAll()); err != nil {
		return nil, errors.Join(err, only.Close())
	}
	serving, err := lock(d.servingFile(), os.O_RDWR|os.O_CREATE, unix.LOCK_EX, lockTimeout)
	if err != nil {
		return nil, errors.Join(err, only.Close())
	}
	return func() error { return errors.Join(serving.Close(), only.Close()) }, nil
}

// lockTimeout outlasts readers, each of which has a lock for a moment to see whether somebody
// else has it.
const lockTimeout = 2 * time.Second

// lock opens the file, and locks it until it is closed or the process ends. It tries again until the timeout while
// another holds it.
func lock(path string, flags, how int, timeout time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a lock file: %w", err)
	}
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(start) >= timeout {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
	}
}

// locked reports whether somebody has locked the file, so that it could not be locked like this; nobody has where there
// is none.
func locked(path string, how int) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close() // it unlocks it; who wants the lock in this moment tries again
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if err == nil || errors.Is(err, unix.EWOULDBLOCK) {
		return err != nil, nil
	}
	return false, fmt.Errorf("lock %s: %w", path, err)
}

// checkSupervised reports that no supervisor runs, which the statuses would be of, or why that is not known.
func (d Dir) checkSupervised() error {
	runs, err := locked(d.servingFile(), unix.LOCK_SH)
	switch {
	case err != nil:
		return fmt.Errorf("look for gpu-mps-supervisor: %w", err)
	case !runs:
		return errors.New("gpu-mps-supervisor does not run on this node: see its DaemonSet's pods")
	}
	return nil
}
