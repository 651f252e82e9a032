// SPDX-License-Identifier: Apache-2.0

// Package contexts makes contexts on the GPUs of a simulated node (tests/standins/sim), as far as
// their compute modes allow it. It stands in for what NVIDIA's kernel driver does when a
// program starts to use CUDA: who is refused, and who holds a GPU that takes one process.
package contexts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBusy is what a program is told that may make no context; CUDA's error says the same.
var ErrBusy = errors.New("CUDA-capable device(s) is/are busy or unavailable")

// Compute modes, as NVML numbers them.
const (
	prohibited       = "2"
	exclusiveProcess = "3"
)

// Where a driver root has a GPU's compute mode, once it was set, and the file that those
// who have contexts on the GPU hold a lock of: a shared one, or in EXCLUSIVE_PROCESS one
// alone.
func modeFile(root, uuid string) string { return filepath.Join(root, "state", uuid+".compute-mode") }

func lockFile(root, uuid string) string { return filepath.Join(root, "state", uuid+".contexts") }

// Open makes a context on a GPU of the driver root, which lasts until it is closed or the
// process ends. The error is ErrBusy where the GPU's compute mode forbids it.
func Open(root, uuid string) (closeContext func() error, err error) {
	mode, err := os.ReadFile(modeFile(root, uuid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	how := unix.LOCK_SH
	switch strings.TrimSpace(string(mode)) {
	case prohibited:
		return nil, fmt.Errorf("%w: its compute mode is PROHIBITED", ErrBusy)
	case exclusiveProcess:
		how = unix.LOCK_EX
	}
	f, err := os.OpenFile(lockFile(root, uuid), os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("find the GPU: %w", err)
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another process has it, and one of them wants it alone", ErrBusy)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

// RootOf is the driver root that a program of the driver lies in; empty if it is in none.
func RootOf(program string) string {
	for dir := filepath.Dir(program); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "machine.nvml")); err == nil {
			return dir
		}
		if dir == "/" || dir == "." {
			return ""
		}
	}
}
