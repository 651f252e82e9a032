// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// pipes is what clients have of a daemon: of all that it makes, a second link to the
// socket that they connect to, in a directory of their own. The daemon's directory is out
// of their reach, with the socket by which it is told to quit, and nothing of theirs is
// in its way.
//
// A container that was started with an earlier version of the driver may have the
// directory mounted writable. One that runs as root can remove the link then, as a start
// script that empties /run does; what starts after that, in any such container of the
// GPU, runs outside of MPS. The daemon still listens, so nothing need end: the link is
// made again.
type pipes struct {
	dir, path string // what clients have, and the socket in it
	own       string // the socket in the daemon's own directory
	spare     string
	socket    mps.Socket // as the daemon made it
}

// errNoSocket is that the daemon's own socket is not there: nobody will ever connect to
// that daemon again.
var errNoSocket = errors.New("the MPS control daemon has no socket in its own directory")

// pipesOf are the pipes of a daemon that answers. Clients do not find it before they are
// opened.
func pipesOf(dir mps.Dir, uuid string) (*pipes, error) {
	p := &pipes{
		dir: dir.PipeDir(uuid), path: filepath.Join(dir.PipeDir(uuid), mps.SocketName),
		own: filepath.Join(dir.DaemonDir(uuid), mps.SocketName), spare: dir.SpareLink(uuid),
	}
	var err error
	p.socket, err = p.ownSocket()
	return p, err
}

func (p *pipes) ownSocket() (mps.Socket, error) {
	socket, err := mps.SocketAt(p.own)
	if errors.Is(err, fs.ErrNotExist) {
		return socket, fmt.Errorf("%w: %w", errNoSocket, err)
	}
	return socket, err
}

// open makes the directory lead to the daemon, and names what did not. It may be called
// again after an error.
func (p *pipes) open() (names []string, err error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the pipe directory of the GPU's clients: %w", err)
	}
	info, err := os.Lstat(p.dir)
	if err != nil {
		return nil, fmt.Errorf("look at the pipe directory of the GPU's clients: %w", err)
	}
	if info.Mode()&^fs.ModeDir != pipeDirMode {
		if err := os.Chmod(p.dir, pipeDirMode); err != nil {
			return nil, fmt.Errorf("open the pipe directory to the GPU's clients: %w", err)
		}
		names = append(names, ".")
	}
	changed, err := p.link()
	if err != nil {
		return nil, fmt.Errorf("lead the GPU's clients to the MPS control daemon: %w", err)
	}
	if changed {
		names = append(names, mps.SocketName)
	}
	return names, nil
}

// link makes clients find the daemon's socket, with the mode that the daemon gave it.
func (p *pipes) link() (changed bool, err error) {
	own, err := p.ownSocket()
	if err != nil {
		return false, err
	}
	if own.Inode != p.socket.Inode {
		return false, fmt.Errorf("%w: another file is at %s", errNoSocket, p.own)
	}
	if own.Mode != p.socket.Mode {
		// By the path that no container can bend to another file.
		if err := unix.Chmod(p.own, p.socket.Mode&^unix.S_IFMT); err != nil {
			return false, fmt.Errorf("give %s its mode again: %w", p.own, err)
		}
		changed = true
	}
	now, err := mps.SocketAt(p.path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return false, err
	case now == p.socket:
		return changed, nil
	case !missing && now.Mode&unix.S_IFMT == unix.S_IFDIR:
		if err := os.RemoveAll(p.path); err != nil {
			return false, err
		}
	}
	return true, p.replace()
}

// replace puts a link to the daemon's socket where clients look for it, in the place of
// whatever file is there.
func (p *pipes) replace() error {
	if err := os.Remove(p.spare); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(p.own, p.spare); err != nil {
		return err
	}
	return os.Rename(p.spare, p.path)
}
