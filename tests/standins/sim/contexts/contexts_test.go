// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestOpen(t *testing.T) {
	const uuid = "GPU-a"
	root := t.TempDir()
	set := func(mode string) {
		t.Helper()
		expect.NoError(t, os.WriteFile(modeFile(root, uuid), []byte(mode+"\n"), 0o644))
	}
	expect.NoError(t, os.MkdirAll(filepath.Join(root, "state"), 0o755))
	open := func() (closeContext func()) {
		t.Helper()
		c, err := Open(root, uuid)
		expect.NoError(t, err)
		return func() {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	}
	refused := func() {
		t.Helper()
		if _, err := Open(root, uuid); !errors.Is(err, ErrBusy) {
			t.Errorf("error %v, want %v", err, ErrBusy)
		}
	}
	// DEFAULT: any number.
	first, second := open(), open()
	set(exclusiveProcess)
	refused()
	first()
	refused()
	second()
	only := open()
	refused()
	set(prohibited)
	refused()
	only()
	refused()
	set("0")
	open()()
}
