// SPDX-License-Identifier: Apache-2.0

// Package hostdir tells whether a directory that a process has mounted is the one
// that the host's other programs see under the same path. A mount outlives the
// directory that it is of: what is written to it then, nobody reads.
package hostdir

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrElsewhere says that the host has no such directory, or another one.
var ErrElsewhere = errors.New("what is written there nobody else sees")

// Gone reports whether an error of Check means that the directory is not the host's any
// more; others may pass.
func Gone(err error) bool { return errors.Is(err, ErrElsewhere) || errors.Is(err, fs.ErrNotExist) }

// ErrReadOnly says that nothing can be written to the directory.
var ErrReadOnly = errors.New("nothing can be written there")

// Dir is a directory that a process shares with the host.
type Dir struct {
	// Path is the directory, as this process and the host name it.
	Path string
	// HostRoot is where this process sees the host's root directory; "/" for a
	// process on the host.
	HostRoot string
	// ReadOnly says that this process only reads it.
	ReadOnly bool
}

// Check reports what is wrong with the directory: ErrElsewhere or ErrReadOnly, or
// that it cannot be looked at. It writes nothing and costs a few system calls. Where
// the kernel cannot look below HostRoot, only a directory that was removed is noticed.
func (d Dir) Check() error {
	var mine unix.Stat_t
	if err := unix.Stat(d.Path, &mine); err != nil {
		return fmt.Errorf("look at directory %s: %w", d.Path, err)
	}
	if mine.Nlink == 0 {
		return fmt.Errorf("directory %s was removed on the host: %w", d.Path, ErrElsewhere)
	}
	if err := d.checkHost(mine); err != nil {
		return err
	}
	if d.ReadOnly {
		return nil
	}
	if err := unix.Faccessat(unix.AT_FDCWD, d.Path, unix.W_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("directory %s: %w: %w", d.Path, err, ErrReadOnly)
	}
	return nil
}

func (d Dir) checkHost(mine unix.Stat_t) error {
	var host unix.Stat_t
	err := statBelow(d.HostRoot, d.Path, &host)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("the host has no directory %s: %w", d.Path, ErrElsewhere)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return nil
	case err != nil:
		return fmt.Errorf("look at the host's directory %s: %w", d.Path, err)
	case host.Dev != mine.Dev || host.Ino != mine.Ino:
		return fmt.Errorf("directory %s is another one than the host's of that path, which was removed and created again, "+
			"renamed, mounted over or never mounted here: %w", d.Path, ErrElsewhere)
	}
	return nil
}

// statBelow looks at a path as a process would whose root directory is root: links that
// start with a slash do not lead out of it.
func statBelow(root, path string, into *unix.Stat_t) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	found, err := openBelow(dir, strings.TrimPrefix(path, "/"))
	if err != nil {
		return err
	}
	defer unix.Close(found)
	return unix.Fstat(found, into)
}

// openTries bounds how often a path is walked again that the kernel could not be sure of.
const openTries = 1000

// openBelow opens a path below a directory. The kernel answers EAGAIN where the path
// leads through ".." while anything at all is renamed or mounted on the machine (openat2(2)).
func openBelow(dir int, path string) (fd int, err error) {
	for range openTries {
		fd, err = unix.Openat2(dir, path, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return fd, err
}
