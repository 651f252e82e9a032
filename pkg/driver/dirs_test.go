package driver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/hostdir"
)

// A start anew helps only what was sound before: anything else would be a loop.
func TestOnlyWhatWasSoundIsLost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	socket := filepath.Join(t.TempDir(), "dra.sock")
	w := dirWatch{
		dirs:    []sharedDir{{Dir: hostdir.Dir{Path: dir, HostRoot: "/"}, setting: "CDI_DIR", without: "nothing starts"}},
		sockets: []string{socket}, sound: map[string]bool{},
	}
	check := func(when string, wantLost, wantWrong []string) {
		t.Helper()
		lost, wrong := w.look()
		for _, tc := range []struct {
			what string
			err  error
			want []string
		}{{"lost", lost, wantLost}, {"wrong", wrong, wantWrong}} {
			if (tc.err == nil) != (len(tc.want) == 0) {
				t.Errorf("%s: %s is %v, want it to name %q", when, tc.what, tc.err, tc.want)
				continue
			}
			for _, text := range tc.want {
				if !strings.Contains(tc.err.Error(), text) {
					t.Errorf("%s: %s is %v, want it to name %q", when, tc.what, tc.err, text)
				}
			}
		}
	}
	check("a directory that was never there", nil, []string{"CDI_DIR", dir})
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(socket, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	check("when all is there", nil, nil)
	if err := errors.Join(os.Remove(dir), os.Remove(socket)); err != nil {
		t.Fatal(err)
	}
	check("when all is gone", []string{"CDI_DIR", dir, socket}, nil)
}
