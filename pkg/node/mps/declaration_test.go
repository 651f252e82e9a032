// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// declare declares it, until the returned function is called.
func declare(t *testing.T, d Dir, declaration Declaration) (withdraw func()) {
	t.Helper()
	f, err := d.Declare(declaration)
	expect.NoError(t, err)
	if f == nil {
		return func() {}
	}
	return func() {
		t.Helper()
		expect.NoError(t, f())
	}
}

func declares(t *testing.T, d Dir, want Declaration) {
	t.Helper()
	if got, err := d.Declared(); err != nil || got != want {
		t.Errorf("declaration: %s, %v, want %s", got, err, want)
	}
}

func TestDeclared(t *testing.T) {
	d := Dir(t.TempDir())
	declares(t, d, Undeclared)
	first := declare(t, d, Idle)
	declares(t, d, Idle)
	// As two instances of the plugin during an update.
	second := declare(t, d, Idle)
	first()
	declares(t, d, Idle)
	used := declare(t, d, InUse)
	declares(t, d, InUse)
	second()
	declares(t, d, InUse)
	used()
	declares(t, d, Undeclared)
	// The supervisor holds other locks.
	release, err := d.Hold()
	expect.NoError(t, err)
	declares(t, d, Undeclared)
	declare(t, d, Idle)()
	expect.NoError(t, release())
}

// A plugin that changes its declaration, or is killed while it does, is never taken for one that
// does not know.
func TestDeclaredWhileADeclarationChanges(t *testing.T) {
	d := Dir(t.TempDir())
	idle := declare(t, d, Idle)
	used := declare(t, d, InUse)
	declares(t, d, InUse)
	idle()
	declares(t, d, InUse)
	idle = declare(t, d, Idle)
	declares(t, d, InUse)
	used()
	declares(t, d, Idle)
	idle()
}

// A plugin that cannot make the files declares nothing, so the daemons run.
func TestIdleWithoutTheFiles(t *testing.T) {
	d := Dir(t.TempDir())
	expect.NoError(t, os.Symlink(filepath.Join(string(d), "none", "file"), d.declarationFile(InUse)))
	if _, err := d.Declare(Idle); err == nil {
		t.Error("it was declared, and could not be withdrawn by InUse")
	}
	declares(t, d, Undeclared)
	declare(t, d, InUse)()
}

func TestInUseGoesWithoutSaying(t *testing.T) {
	d := Dir(t.TempDir())
	if withdraw, err := d.Declare(InUse); err != nil || withdraw != nil {
		t.Errorf("somebody was told: %v", err)
	}
	if entries, err := os.ReadDir(string(d)); err != nil || len(entries) > 0 {
		t.Errorf("%v was written, %v", entries, err)
	}
	declare(t, d, Idle)()
	// From then on it does not, whoever has declared the node idle.
	if withdraw, err := d.Declare(InUse); err != nil || withdraw == nil {
		t.Errorf("nobody was told: %v", err)
	}
}

func TestDeclaredWithoutADirectory(t *testing.T) {
	d := Dir(t.TempDir() + "/none")
	if got, err := d.Declared(); err == nil || got != Undeclared {
		t.Errorf("declaration: %s, %v", got, err)
	}
	if _, err := d.Declare(Idle); err == nil {
		t.Error("it was declared nowhere")
	}
	_, err := d.Declare(InUse)
	expect.NoErrorf(t, err, "nobody has declared otherwise")
}

func TestAwaitIdleEnd(t *testing.T) {
	d := Dir(t.TempDir())
	first, second := declare(t, d, Idle), declare(t, d, Idle)
	ended := make(chan error, 1)
	go func() { ended <- d.AwaitIdleEnd() }()
	first()
	if len(ended) > 0 {
		t.Error("it has ended while the node is idle")
	}
	second()
	select {
	case err := <-ended:
		expect.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}
