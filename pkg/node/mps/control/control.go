// SPDX-License-Identifier: Apache-2.0

// Package control runs nvidia-cuda-mps-control, NVIDIA's MPS control program,
// where the node's driver is installed.
//
// The program is part of the driver, on the host: linked to the host's C
// library, and starting nvidia-cuda-mps-server, which loads libcuda.so.1, from
// beside it. None of that is in an image, and none could be, for it has to be of
// the kernel module's version. So it runs with the driver root as its root
// directory: for a driver on the host itself that is the host's, with its C
// library, /dev and /proc; for one that a container installs, that container's.
// A driver root that holds nothing but the driver's files, without a C library,
// cannot be run this way.
//
// The directory with the daemons' pipes has to be there under the path it has on
// the host. It is mounted there, in a mount namespace that each process gets for
// itself: nobody else sees it, and nothing has to be unmounted. The host's mounts
// still come and go in it, so that a driver container's root can be unmounted.
//
// Mounting and changing the root take CAP_SYS_ADMIN and CAP_SYS_CHROOT. With "/"
// as the driver root, as for a process on the host, neither is done.
//
// The daemon is to share the host's PID namespace, as where it was measured:
// from one that has no view of the clients' it would know none of their
// processes.
package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/supervisor"
)

// DefaultPath is where driver packages install the program.
const DefaultPath = "/usr/bin/nvidia-cuda-mps-control"

// outputDelay is how long the output of a process that has ended is waited for,
// should another have it open too.
const outputDelay = time.Second

// Program is the control program of a node's driver.
type Program struct {
	// Root is the driver root, as this process sees it.
	Root string
	// Path is the program, as seen from Root.
	Path string
	// LibraryPaths are further directories, as seen from Root, with the
	// driver's libraries.
	LibraryPaths []string
	// Dir has the GPUs' pipe and log directories, under the path that it has
	// on the host.
	Dir mps.Dir
}

var _ supervisor.Control = &Program{}

// Start starts the control daemon of the GPU, for clients of all users. It
// ends, at the latest, with this process.
func (p *Program) Start(uuid string) (supervisor.Daemon, error) {
	d := newDaemon(p.Dir.LogDir(uuid))
	cmd := exec.Command(p.Path, "-f", "--multiuser-server")
	cmd.Stdout, cmd.Stderr = &d.output, &d.output
	p.configure(cmd, uuid)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+uuid)
	started := make(chan error, 1)
	onThread(func() {
		if err := p.start(cmd); err != nil {
			started <- err
			return
		}
		d.pid = cmd.Process.Pid
		started <- nil
		d.wait(cmd)
	})
	if err := <-started; err != nil {
		return nil, err
	}
	return d, nil
}

// Ask gives a command to the GPU's daemon.
func (p *Program) Ask(ctx context.Context, uuid, command string) (string, error) {
	var output tail
	cmd := exec.CommandContext(ctx, p.Path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(command+"\n"), &output, &output
	p.configure(cmd, uuid)
	answered := make(chan error, 1)
	onThread(func() {
		if err := p.start(cmd); err != nil {
			answered <- fmt.Errorf("%w: %w", supervisor.ErrNotAsked, err)
			return
		}
		answered <- cmd.Wait()
	})
	ended, err := await(ctx, answered)
	switch {
	case !ended:
		return "", fmt.Errorf("ask the MPS control daemon %q: the program does not end: %w", command, err)
	case err != nil:
		return "", fmt.Errorf("ask the MPS control daemon %q: %w%s", command, err, output.said())
	}
	return strings.TrimSpace(output.String()), nil
}

// await waits for the end of a program that the context's end kills. ended is false where
// the kernel does not let it end, as for a driver root that hangs.
func await(ctx context.Context, answered <-chan error) (ended bool, err error) {
	select {
	case err = <-answered:
	case <-ctx.Done():
		select {
		case err = <-answered:
		case <-time.After(2 * outputDelay):
			return false, context.Cause(ctx)
		}
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return true, err
}

func (p *Program) configure(cmd *exec.Cmd, uuid string) {
	cmd.Env = []string{
		"PATH=" + filepath.Dir(p.Path) + ":/usr/sbin:/usr/bin:/sbin:/bin",
		"CUDA_MPS_PIPE_DIRECTORY=" + p.Dir.DaemonDir(uuid),
		"CUDA_MPS_LOG_DIRECTORY=" + p.Dir.LogDir(uuid),
	}
	if len(p.LibraryPaths) > 0 {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+strings.Join(p.LibraryPaths, ":"))
	}
	cmd.Dir = "/"
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if p.Root != "/" {
		cmd.SysProcAttr.Chroot = p.Root
	}
}

// start starts the process. It is called on a thread of its own: see onThread.
func (p *Program) start(cmd *exec.Cmd) error {
	if p.Root != "/" {
		if err := p.mountDir(); err != nil {
			return err
		}
	}
	err := cmd.Start()
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start %s in the driver root %s: %w: the driver there comes without its MPS programs, which are "+
			"a package of their own in some distributions, "+
			"or without a C library; give the program's path if it is elsewhere", p.Path, p.Root, err)
	}
	if err != nil {
		return fmt.Errorf("start %s in the driver root %s: %w", p.Path, p.Root, err)
	}
	return nil
}

// mountDir makes the directory of p.Dir visible in the driver root, for the calling thread and
// what it starts only.
func (p *Program) mountDir() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace for the MPS control program: %w: gpu-mps-supervisor has to run privileged",
			err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep the mounts of the MPS control program from the host: %w", err)
	}
	shared := p.Dir.Shared()
	target := filepath.Join(p.Root, shared)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make a place for %s in the driver root: %w: make the directory %s there", shared, err, shared)
	}
	if err := unix.Mount(shared, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s for the MPS control program: %w", shared, target, err)
	}
	return nil
}

// watchInterval is how soon a watch that was forgotten ends.
const watchInterval = 500 * time.Millisecond

// Watch closes ended when the process has, which need not be a child of this one.
func (p *Program) Watch(pid int) (ended <-chan struct{}, forget func(), err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	done, forgotten := make(chan struct{}), make(chan struct{})
	go func() {
		defer unix.Close(fd) //nolint:errcheck // Nothing is lost with it.
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(watchInterval.Milliseconds()))
			if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
				close(done)
				return
			}
			select {
			case <-forgotten:
				return
			default:
			}
		}
	}()
	return done, sync.OnceFunc(func() { close(forgotten) }), nil
}
