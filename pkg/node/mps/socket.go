// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SocketName is the socket in a pipe directory through which clients, and the
// MPS servers, reach the control daemon: the daemon names it in its log as it
// starts.
const SocketName = "control"

// Socket tells a daemon's socket from another of the same name, and from one
// that not everybody may connect to any more. A program in a container that runs
// as root can bring about either.
type Socket struct {
	// Inode is not given to another file as long as there is a link to it.
	Inode uint64 `json:"inode"`
	// Mode is as in stat(2).
	Mode uint32 `json:"mode"`
}

// SocketAt reads which socket has this path; a symbolic link is none. The error
// is ENOENT where there is nothing.
func SocketAt(path string) (Socket, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return Socket{}, fmt.Errorf("look at %s: %w", path, err)
	}
	return Socket{Inode: stat.Ino, Mode: stat.Mode}, nil
}

// check reports that clients of the GPU's daemon do not find this socket.
func (s Socket) check(d Dir, uuid string) error {
	now, err := SocketAt(filepath.Join(d.PipeDir(uuid), SocketName))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("look for the socket of the GPU's MPS control daemon: %w", err)
	}
	if err != nil || now != s {
		return errors.New("the socket of the GPU's MPS control daemon was removed or changed, as by a program in a " +
			"container that cleans up in /run: gpu-mps-supervisor puts it back, see its log")
	}
	return nil
}
