package supervisor

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

// pipesOf are the files of a daemon that listens at its socket.
func pipesOf(t *testing.T) *pipes {
	t.Helper()
	// A socket's path may have 107 bytes.
	root, err := os.MkdirTemp("/tmp", "pipes")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	dir := mps.Dir(root)
	if err := prepareDirs(dir, "a"); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir.PipeDir("a"), name) }
	listener, err := net.Listen("unix", in(mps.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	err = errors.Join(os.Chmod(in(mps.SocketName), 0o777), unix.Mkfifo(in("log"), 0o600), os.WriteFile(in("pid"), []byte("1"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	p, err := keepPipes(dir, "a")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPutBack(t *testing.T) {
	const socket = mps.SocketName
	for name, tc := range map[string]struct {
		change func(in func(name string) string) error
		want   []string
	}{
		"nothing has changed": {change: func(func(string) string) error { return nil }},
		"all is removed": {
			change: func(in func(string) string) error {
				return errors.Join(os.Remove(in(socket)), os.Remove(in("log")), os.Remove(in("pid")))
			},
			want: []string{socket, "log", "pid"},
		},
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
				return errors.Join(os.Chmod(in(socket), 0o700), os.Chmod(in("."), 0o700))
			},
			want: []string{".", socket},
		},
		"the daemon writes a file anew": {
			change: func(in func(string) string) error {
				return errors.Join(os.Remove(in("pid")), os.WriteFile(in("pid"), []byte("2"), 0o600))
			},
		},
		"a client makes a file of its own": {
			change: func(in func(string) string) error { return os.WriteFile(in("mine"), nil, 0o600) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := pipesOf(t)
			if err := tc.change(func(name string) string { return filepath.Join(p.dir, name) }); err != nil {
				t.Fatal(err)
			}
			names, err := p.putBack()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, names); diff != "" {
				t.Error("put back:", diff)
			}
			connection, err := net.Dial("unix", filepath.Join(p.dir, socket))
			if err != nil {
				t.Fatal("clients do not reach the daemon:", err)
			}
			_ = connection.Close()
			if names, err := p.putBack(); err != nil || len(names) > 0 {
				t.Errorf("the second time %q is put back (%v)", names, err)
			}
			if mode := stat(t, filepath.Join(p.dir, socket)).Mode().Perm(); mode != 0o777 {
				t.Errorf("the socket's mode is %v", mode)
			}
			if mode := stat(t, p.dir).Mode() &^ os.ModeDir; mode != pipeDirMode {
				t.Errorf("the directory's mode is %v", mode)
			}
		})
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
