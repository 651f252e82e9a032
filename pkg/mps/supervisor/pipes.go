package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

// pipes are the files by which others reach a daemon. Every container of the
// card has them mounted, and one that runs as root can remove them, as a start
// script that empties /run does; what starts after that, in any container of the
// card, runs outside of MPS. The daemon still listens, so nothing need end: a
// second link to the same file, out of the containers' reach, takes the place of
// the first.
type pipes struct {
	dir, kept string
	files     []pipeFile // in the order of their names
}

type pipeFile struct {
	name string
	mode fs.FileMode
}

// keepPipes keeps the files that the daemon has made. It is called when the
// daemon answers.
func keepPipes(dir mps.Dir, uuid string) (*pipes, error) {
	p := &pipes{dir: dir.PipeDir(uuid), kept: dir.KeptDir(uuid)}
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("look at what the MPS control daemon has made: %w", err)
	}
	for _, entry := range entries {
		if entry.Type()&(fs.ModeDir|fs.ModeSymlink) != 0 {
			continue
		}
		if err := os.Link(filepath.Join(p.dir, entry.Name()), filepath.Join(p.kept, entry.Name())); err != nil {
			return nil, fmt.Errorf("keep what the MPS control daemon has made: %w", err)
		}
		info, err := os.Lstat(filepath.Join(p.kept, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("keep what the MPS control daemon has made: %w", err)
		}
		p.files = append(p.files, pipeFile{entry.Name(), info.Mode()})
	}
	return p, nil
}

// socket is the one that clients connect to, nil if the daemon has none.
func (p *pipes) socket() (*mps.Socket, error) {
	socket, err := mps.SocketAt(filepath.Join(p.kept, mps.SocketName))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the socket of the MPS control daemon: %w", err)
	}
	return &socket, nil
}

// putBack makes the directory lead to the daemon again, and names what did not.
func (p *pipes) putBack() (names []string, err error) {
	info, err := os.Lstat(p.dir)
	if err != nil {
		return nil, fmt.Errorf("look at the pipe directory of the MPS control daemon: %w", err)
	}
	if info.Mode()&^fs.ModeDir != pipeDirMode {
		if err := os.Chmod(p.dir, pipeDirMode); err != nil {
			return nil, fmt.Errorf("open the pipe directory of the MPS control daemon to clients again: %w", err)
		}
		names = append(names, ".")
	}
	for _, file := range p.files {
		changed, err := p.putFileBack(file)
		if err != nil {
			return nil, fmt.Errorf("put back what the MPS control daemon had made: %w", err)
		}
		if changed {
			names = append(names, file.name)
		}
	}
	return names, nil
}

func (p *pipes) putFileBack(file pipeFile) (changed bool, err error) {
	path, kept := filepath.Join(p.dir, file.name), filepath.Join(p.kept, file.name)
	now, err := os.Lstat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return false, err
	}
	// A regular file is the daemon's to write anew.
	if !missing && file.mode.IsRegular() && now.Mode().IsRegular() {
		return false, nil
	}
	want, err := os.Lstat(kept)
	if err != nil {
		return false, err
	}
	if want.Mode() != file.mode {
		// By the path that no container can bend to another file.
		if err := os.Chmod(kept, file.mode); err != nil {
			return false, err
		}
		changed = true
	}
	if !missing && os.SameFile(now, want) {
		return changed, nil
	}
	if err := os.RemoveAll(path); err != nil {
		return false, err
	}
	return true, os.Link(kept, path)
}
