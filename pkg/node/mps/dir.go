// SPDX-License-Identifier: Apache-2.0

// Package mps keeps NVIDIA's Multi-Process Service at hand on a node: one
// control daemon per card, or one for all where that is asked for, run by
// gpu-mps-supervisor apart from the plugin, so that an upgrade of the plugin kills
// no client. The two know of each other
// only through a directory on the host, see Dir.
package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// MaxClients is how many client processes one card's server takes: of 64
// started on an H200, 48 connected.
const MaxClients = 48

// DefaultHostDir is the directory on the host that supervisor and plugin
// share. It does not survive a reboot, and neither do the daemons.
const DefaultHostDir = "/run/gpushare/mps"

// Dir is the shared directory, as the process that uses it sees it:
//
//	.                         locked by plugins while nothing on the node uses MPS
//	supervisor.lock           locked by the only supervisor
//	serving.lock              locked by it as soon as nothing of an earlier one is left
//	<UUID>/use.json           what the card is used for by MPS, as the plugin says
//	<UUID>/status.json        what became of the card's daemon
//	<UUID>/compute-mode.json  the card's compute mode, where the supervisor changed it
//	<UUID>/containers.json    the containers that have shares of the card
//	<UUID>/pipe               what clients have for a pipe directory: a link to its socket
//	<UUID>/daemon             the daemon's own pipe directory
//	<UUID>/log                the daemon's log directory
//	mps-node                  the same of a daemon for all cards, see OfNode
type Dir string

// State is what a card's daemon is doing.
type State string

// The states of a daemon.
const (
	Starting State = "Starting"
	Ready    State = "Ready" // it answers; new clients are served and limited
	Down     State = "Down"  // it has ended, could not be started, does not answer, or is about to end
)

// Status is what the supervisor says about a card's daemon.
type Status struct {
	State State `json:"state"`
	// Reason says why the daemon is not Ready, for people. Of one that is, it says why its
	// server goes on although nobody is said to use it.
	Reason string `json:"reason,omitempty"`
	// Since is when the state was entered.
	Since time.Time `json:"since"`
	// Restarts counts how often the daemon ended and was started again.
	Restarts int `json:"restarts,omitempty"`
	// Socket is where clients reach a Ready daemon. It is nil if that is not
	// known, as of a supervisor of an earlier version.
	Socket *Socket `json:"socket,omitempty"`
	// DriverEnforced says that the kernel driver keeps programs from the card that are no
	// clients of its MPS server, whenever the card's Use is Guarded.
	DriverEnforced bool `json:"driverEnforced,omitempty"`
	// Use is what the daemon is set up for. It is nil if that is not known, as of a
	// supervisor of an earlier version.
	Use *Use `json:"use,omitempty"`
	// InForce are the limits that the daemon holds all processes to, and zero where it was
	// told none.
	InForce Limits `json:"inForce,omitzero"`
}

// PipeDir is the card's pipe directory as its clients have it.
func (d Dir) PipeDir(uuid string) string { return filepath.Join(d.daemon(uuid), "pipe") }

// DaemonDir is the pipe directory of the card's daemon. No container has it mounted.
func (d Dir) DaemonDir(uuid string) string { return filepath.Join(d.daemon(uuid), "daemon") }

// LogDir is the directory of the card's daemon's logs.
func (d Dir) LogDir(uuid string) string { return filepath.Join(d.daemon(uuid), "log") }

// SpareLink is where the supervisor makes a link before it takes the place of another.
func (d Dir) SpareLink(uuid string) string { return filepath.Join(d.daemon(uuid), "link") }

// EarlierLinks is where earlier versions of the supervisor had links of their own.
func (d Dir) EarlierLinks(uuid string) string { return filepath.Join(d.daemon(uuid), "kept") }

// Files is the directory with what plugin and supervisor say of the card.
func (d Dir) Files(uuid string) string { return d.card(uuid) }

func (d Dir) card(uuid string) string { return filepath.Join(string(d), uuid) }

func (d Dir) statusFile(uuid string) string { return filepath.Join(d.card(uuid), "status.json") }

func (d Dir) lockFile() string { return filepath.Join(string(d.root()), "supervisor.lock") }

func (d Dir) servingFile() string { return filepath.Join(string(d.root()), "serving.lock") }

// Check reports why a new client of the card's daemon would not be limited, nil
// if it would be. It is true at this moment: the status is written as soon as
// the daemon ends, a supervisor that ended with its daemons has let go of its
// locks, and the daemon's socket is looked at. A daemon that runs and does not
// answer is told of as soon as the supervisor has asked it.
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

// DriverEnforced says whether the kernel driver keeps programs in the card's MPS, as far as
// the supervisor has said it.
func (d Dir) DriverEnforced(uuid string) bool {
	s, err := d.Status(uuid)
	return err == nil && s.DriverEnforced
}

// Status reads what the supervisor last said about the card's daemon.
func (d Dir) Status(uuid string) (Status, error) {
	var s Status
	there, err := readJSON(d.statusFile(uuid), "read the status of the GPU's MPS control daemon", &s)
	if err == nil && !there {
		err = errors.New("gpu-mps-supervisor serves no MPS control daemon for this GPU: see its log")
	}
	if err != nil {
		return Status{}, err
	}
	return s, nil
}

// SetStatus is for the supervisor: it tells everybody what became of the
// card's daemon.
func (d Dir) SetStatus(uuid string, s Status) error {
	return writeJSON(d.statusFile(uuid), "tell the status of the GPU's MPS control daemon", s)
}

// Hold is for the supervisor: it makes the process the directory's only
// supervisor for as long as it lives, or fails if there is another. What an
// earlier one said is forgotten before anybody can take it for this one's word.
func (d Dir) Hold() (release func() error, err error) {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory that supervisor and plugin share: %w", err)
	}
	only, err := lock(d.lockFile(), 0)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("another gpu-mps-supervisor runs on this node: %s is held", d.lockFile())
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.forgetAll(), d.OfNode().forgetAll()); err != nil {
		return nil, errors.Join(err, only.Close())
	}
	serving, err := lock(d.servingFile(), lookersPatience)
	if err != nil {
		return nil, errors.Join(err, only.Close())
	}
	return func() error { return errors.Join(serving.Close(), only.Close()) }, nil
}

// lookersPatience outlasts those who look, for a moment each, whether there is a
// supervisor.
const lookersPatience = 2 * time.Second

// lock opens and locks the file, which the process lets go of by closing it or
// by ending.
func lock(path string, patience time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open a lock file: %w", err)
	}
	if err := flock(f, unix.LOCK_EX, patience); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkSupervised reports that no supervisor runs, or why that is not known.
func (d Dir) checkSupervised() error {
	alive, err := d.supervised()
	if err == nil && !alive {
		err = errors.New("gpu-mps-supervisor does not run on this node: see its DaemonSet's pods")
	}
	return err
}

// supervised says whether a supervisor holds the directory, and what is said
// there is its word.
func (d Dir) supervised() (bool, error) {
	f, err := os.Open(d.servingFile())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for gpu-mps-supervisor: %w", err)
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look for gpu-mps-supervisor: %w", err)
	default:
		// Closing gives the lock back; a supervisor that starts in this very
		// moment tries again.
		return false, nil
	}
}
