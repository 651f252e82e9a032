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
	if found := w.look(); found.wrong != nil {
		t.Errorf("at once: %v", found.wrong)
	}
	clock.SetTime(clock.Now().Add(registrationMost))
	found := w.look()
	if found.wrong == nil || !strings.Contains(found.wrong.Error(), "KUBELET_REGISTRAR_DIR") {
		t.Errorf("after %s: %v", registrationMost, found.wrong)
	}
	if found.gone != nil || found.lost != nil {
		t.Errorf("it would restart, or withdraw its GPUs: %v, %v", found.lost, found.gone)
	}
	r.done()
	if found := w.look(); found.wrong != nil {
		t.Errorf("when it has registered: %v", found.wrong)
	}
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
	u.asked(blind)
	if said != blind {
		t.Errorf("said %v, want %v", said, blind)
	}
	u.looked(gone)
	if said != gone {
		t.Errorf("said %v, want %v", said, gone)
	}
	u.looked(nil)
	if said != blind {
		t.Errorf("said %v, want %v again", said, blind)
	}
	u.asked(nil)
	if said != nil {
		t.Errorf("said %v of nothing", said)
	}
	u.startable = func() error { return noNodes }
	if u.looked(nil); !errors.Is(said, noNodes) {
		t.Errorf("said %v, want %v", said, noNodes)
	}
}
