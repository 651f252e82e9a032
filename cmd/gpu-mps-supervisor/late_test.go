// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// On a node without processor time to spare a daemon answers after 20 seconds. A container that starts meanwhile would
// fail for good, if its pod is not restarted: it waits instead, and the daemon's clients go on.
func TestContainerWaitsForALateDaemon(t *testing.T) {
	t.Parallel()
	dir, uuids := serving(t)
	daemon := daemonPID(t, dir, uuids[0])
	goOn := func() error { return unix.Kill(daemon, unix.SIGCONT) }
	expect.NoError(t, unix.Kill(daemon, unix.SIGSTOP))
	t.Cleanup(func() { _ = goOn() })
	stopped := time.Now()
	eventually(t, "the silent daemon is late, and not down", func() error {
		if s, err := dir.Status(uuids[0]); err != nil || s.State != mps.Late {
			return fmt.Errorf("status %+v, %w", s, err)
		}
		return nil
	})
	waited := make(chan error, 1)
	go func() {
		waited <- dir.Await(t.Context(), uuids[:1], mps.Waiting{ID: "c1", Namespace: "team", Pod: "job", UID: "u"})
	}()
	eventually(t, "it is told who waits", func() error {
		waiting, err := dir.Waiting(uuids[0])
		if err == nil && (len(waiting) != 1 || waiting[0].Pod != "job") {
			err = fmt.Errorf("%+v", waiting)
		}
		return err
	})
	time.Sleep(time.Until(stopped.Add(20 * time.Second))) // the daemon's silence is the subject
	select {
	case err := <-waited:
		t.Fatalf("the container was refused, or started, while the daemon was silent: %v", err)
	default:
	}
	expect.NoError(t, goOn())
	expect.NoErrorf(t, <-waited, "the container was not started")
	if waiting, err := dir.Waiting(uuids[0]); err != nil || len(waiting) > 0 {
		t.Errorf("somebody waits still: %+v, %v", waiting, err)
	}
	if s, err := dir.Status(uuids[0]); err != nil || s.Restarts != 0 {
		t.Errorf("the daemon was killed: %+v, %v", s, err)
	}
}
