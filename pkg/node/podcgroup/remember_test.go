// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const aPod = "6f1c7a52-3b0e-4d2a-9a43-0b1d2c3e4f50"

// procfs is a directory with process 7.
func procfs(t *testing.T) (dir string, put func(pod, program string)) {
	t.Helper()
	dir = t.TempDir()
	put = func(pod, program string) {
		t.Helper()
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "7"), 0o755),
			os.WriteFile(filepath.Join(dir, "7", "cgroup"), []byte("0::/kubepods/pod"+pod+"\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "7", "comm"), []byte(program+"\n"), 0o600))
		expect.NoError(t, err)
	}
	return dir, put
}

func TestRemembered(t *testing.T) {
	const other = "11111111-2222-3333-4444-555555555555"
	dir, put := procfs(t)
	put(aPod, "train")
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	r := Remember(Processes(dir), clock)
	runs := func(pod, program string) {
		t.Helper()
		places, err := r.Places(7)
		if err != nil || len(places) != 1 || string(places[0].Pod) != pod {
			t.Errorf("places %v, %v; want pod %s", places, err, pod)
		}
		if got, err := r.Program(7); err != nil || got != program {
			t.Errorf("program %q, %v; want %q", got, err, program)
		}
	}
	runs(aPod, "train")
	put(other, "serve")
	runs(aPod, "train") // the same process
	clock.SetTime(clock.Now().Add(rememberedFor))
	runs(other, "serve")

	// Another process with the number.
	expect.NoError(t, os.RemoveAll(filepath.Join(dir, "7")))
	if _, err := r.Places(7); !errors.Is(err, ErrEnded) {
		t.Errorf("error %v of a process that ended, want %v", err, ErrEnded)
	}
	put(aPod, "again")
	runs(aPod, "again")
	expect.Equal(t, 1, len(r.known), "processes are remembered")
}

// The kernel keeps the identity of a process that runs.
func TestRememberedOfThisProcess(t *testing.T) {
	r := Remember("/proc", clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))
	first, err := r.of(os.Getpid())
	expect.NoError(t, err)
	if again, err := r.of(os.Getpid()); err != nil || again != first {
		t.Errorf("another process the second time: %+v, %+v, %v", first, again, err)
	}
}
