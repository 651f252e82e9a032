// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// listening are the pipes of a daemon that listens at its socket, and has made the files
// that NVIDIA's makes.
func listening(t *testing.T) *pipes {
	t.Helper()
	// A socket's path may have 107 bytes.
	root, err := os.MkdirTemp("/tmp", "pipes")
	expect.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	dir := mps.Dir(root)
	_, ctx := ktesting.NewTestContext(t)
	expect.NoError(t, prepareDirs(ctx, dir, "a"))
	in := func(name string) string { return filepath.Join(dir.DaemonDir("a"), name) }
	for name, mode := range map[string]os.FileMode{mps.SocketName: 0o666, "control_privileged": 0o755} {
		listener, err := net.Listen("unix", in(name))
		expect.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		expect.NoError(t, os.Chmod(in(name), mode))
	}
	expect.NoError(t, errors.Join(unix.Mkfifo(in("log"), 0o777), os.WriteFile(in("control_lock"), nil, 0o666)))
	p, err := pipesOf(dir, "a")
	expect.NoError(t, err)
	return p
}

func opened(t *testing.T, p *pipes) (names []string) {
	t.Helper()
	names, err := p.open()
	expect.NoError(t, err)
	return names
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	expect.NoError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// Clients have the socket that they connect to, and nothing else of the daemon's.
func TestClientsHaveTheSocketOnly(t *testing.T) {
	p := listening(t)
	expect.Equal(t, nil, names(t, p.dir), "clients have before they are to")
	opened(t, p)
	expect.Equal(t, []string{mps.SocketName}, names(t, p.dir), "clients have")
}

func TestPipesAreOpenedAgain(t *testing.T) {
	const socket = mps.SocketName
	for name, tc := range map[string]struct {
		change func(in func(name string) string) error
		want   []string
	}{
		"nothing has changed": {change: func(func(string) string) error { return nil }},
		"the socket is removed": {change: func(in func(string) string) error { return os.Remove(in(socket)) },
			want: []string{socket}},
		"the directory is removed": {change: func(in func(string) string) error { return os.RemoveAll(in(".")) },
			want: []string{socket}},
		"a file is in the socket's place": {
			change: func(in func(string) string) error {
				return errors.Join(os.Remove(in(socket)), os.WriteFile(in(socket), nil, 0o777))
			},
			want: []string{socket},
		},
		"a directory is in the socket's place": {
			change: func(in func(string) string) error {
				return errors.Join(os.Remove(in(socket)), os.MkdirAll(filepath.Join(in(socket), "d"), 0o777))
			},
			want: []string{socket},
		},
		"a link to nowhere is in the socket's place": {
			change: func(in func(string) string) error {
				return errors.Join(os.Remove(in(socket)), os.Symlink("nowhere", in(socket)))
			},
			want: []string{socket},
		},
		"the directory is closed, and the socket": {
			change: func(in func(string) string) error {
				return errors.Join(os.Chmod(in(socket), 0o600), os.Chmod(in("."), 0o700))
			},
			want: []string{".", socket},
		},
		"the directory is opened to all": {
			change: func(in func(string) string) error { return os.Chmod(in("."), 0o777|os.ModeSticky) },
			want:   []string{"."},
		},
		"a client makes a file of its own": {
			change: func(in func(string) string) error { return os.WriteFile(in("mine"), nil, 0o600) },
		},
		"a link was made and not put in place": {
			change: func(in func(string) string) error {
				return os.Rename(in(socket), filepath.Join(filepath.Dir(in(".")), "link"))
			},
			want: []string{socket},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := listening(t)
			opened(t, p)
			expect.NoError(t, tc.change(func(name string) string { return filepath.Clean(p.dir + "/" + name) }))
			expect.Equal(t, tc.want, opened(t, p), "made again")
			connection, err := net.Dial("unix", filepath.Join(p.dir, socket))
			expect.NoErrorf(t, err, "clients do not reach the daemon")
			_ = connection.Close()
			expect.Equal(t, nil, opened(t, p), "made the second time")
			expect.Equal(t, 0o666, stat(t, filepath.Join(p.dir, socket)).Mode().Perm(), "the socket's mode is")
			expect.Equal(t, pipeDirMode, stat(t, p.dir).Mode()&^os.ModeDir, "the directory's mode is")
		})
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Lstat(path)
	expect.NoError(t, err)
	return info
}
