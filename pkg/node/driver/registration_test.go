// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/hostdir"
)

func TestKubeletThatDoesNotRegisterThePlugin(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	r := newRegistration(clock)
	w := newDirWatch(nil, nil, r.overdue)
	expect.NoErrorf(t, w.look().wrong, "at once")
	clock.SetTime(clock.Now().Add(registrationMost))
	found := w.look()
	expect.Error(t, found.wrong, "KUBELET_REGISTRAR_DIR")
	if found.gone != nil || found.lost != nil {
		t.Errorf("it would restart, or withdraw its GPUs: %v, %v", found.lost, found.gone)
	}
	r.done()
	expect.NoErrorf(t, w.look().wrong, "when it has registered")
}

// A directory without which GPUs can be used counts when it is lost.
func TestDirectoriesAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mps")
	aside := sharedDir{Dir: hostdir.Dir{Path: dir, HostRoot: "/", ReadOnly: true}, setting: "MPS_DIR",
		without: "no MPS", aside: true}
	w := newDirWatch([]sharedDir{aside}, nil, func() error { return nil })
	if found := w.look(); found != (dirsFound{}) {
		t.Errorf("one that was never there: %+v", found)
	}
	expect.NoError(t, os.Mkdir(dir, 0o755))
	if found := w.look(); found != (dirsFound{}) {
		t.Errorf("one that is there: %+v", found)
	}
	expect.NoError(t, os.Remove(dir))
	found := w.look()
	if found.lost == nil || !strings.Contains(found.lost.Error(), "MPS_DIR") || found.gone != nil || found.wrong != nil {
		t.Errorf("one that is lost: %+v", found)
	}
}

// Whatever makes GPUs unusable is said, and the first of it.
func TestUsability(t *testing.T) {
	var said error
	noNodes := errors.New("no device nodes")
	u := &usability{startable: func() error { return nil }, tell: func(why error) { said = why }}
	gone, blind := errors.New("gone"), errors.New("blind")
	says := func(want error) {
		t.Helper()
		if said != want {
			t.Errorf("said %v, want %v", said, want)
		}
	}
	u.asked(blind)
	says(blind)
	u.looked(gone)
	says(gone)
	u.looked(nil)
	says(blind)
	u.asked(nil)
	says(nil)
	u.startable = func() error { return noNodes }
	u.looked(nil)
	expect.ErrorIs(t, said, noNodes)
}

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
