// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestOpen(t *testing.T) {
	const uuid = "GPU-a"
	root := t.TempDir()
	set := func(mode string) {
		t.Helper()
		if err := os.WriteFile(modeFile(root, uuid), []byte(mode+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "state"), 0o755); err != nil {
		t.Fatal(err)
	}
	open := func() (closeContext func()) {
		t.Helper()
		c, err := Open(root, uuid)
		if err != nil {
			t.Fatal(err)
		}
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
