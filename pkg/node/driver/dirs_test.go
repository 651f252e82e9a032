// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/hostdir"
)

// A restart helps only what was sound before: anything else would be a loop.
func TestOnlyWhatWasSoundIsLost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	socket := filepath.Join(t.TempDir(), "dra.sock")
	w := newDirWatch([]sharedDir{{Dir: hostdir.Dir{Path: dir, HostRoot: "/"}, setting: "CDI_DIR",
		without: "nothing starts"}}, []string{socket}, func() error { return nil })
	check := func(when string, wantGone, wantLost, wantWrong []string) {
		t.Helper()
		found := w.look()
		t.Log(when)
		expect.Error(t, found.gone, wantGone...)
		expect.Error(t, found.lost, wantLost...)
		expect.Error(t, found.wrong, wantWrong...)
	}
	check("a directory that was never there", []string{"CDI_DIR", dir}, nil, []string{"CDI_DIR", dir})
	expect.NoError(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(socket, nil, 0o600)))
	check("when all is there", nil, nil, nil)
	expect.NoError(t, errors.Join(os.Remove(dir), os.Remove(socket)))
	check("when all is gone", []string{"CDI_DIR", dir}, []string{"CDI_DIR", dir, socket}, nil)
}
