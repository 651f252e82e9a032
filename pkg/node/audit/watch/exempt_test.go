// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

// servers are a machine's processes that call themselves the server of MPS.
type servers struct{ *machine }

func (servers) Program(int) (string, error) { return "nvidia-cuda-mps", nil }

// A process chooses its name. So a server of MPS in a pod is one only in the supervisor's.
func TestServersOfMPS(t *testing.T) {
	const supervisor = 7
	own := []podcgroup.Place{{Pod: "supervisor", Container: "c"}}
	for name, tc := range map[string]struct {
		places     []podcgroup.Place
		pid        int
		err        error
		told, asks bool
	}{
		"of the node":          {nil, supervisor, nil, false, false},
		"of the supervisor":    {[]podcgroup.Place{{Pod: "supervisor", Container: "before"}}, supervisor, nil, false, true},
		"of a tenant":          {[]podcgroup.Place{{Pod: "tenant"}}, supervisor, nil, true, true},
		"in a group so named":  {[]podcgroup.Place{{Pod: "tenant"}, {Pod: "supervisor"}}, supervisor, nil, true, true},
		"without a supervisor": {[]podcgroup.Place{{Pod: "tenant"}}, 0, nil, true, true},
		"it has just ended":    {[]podcgroup.Place{{Pod: "tenant"}}, 8, nil, true, true},
		"it is not known":      {[]podcgroup.Place{{Pod: "tenant"}}, 0, errors.New("no procfs"), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			m := newMachine(t, func(o *Options) {
				o.Supervisor = func() (int, error) {
					asked++
					return tc.pid, tc.err
				}
			})
			m.Processes = servers{m}
			m.places[2], m.places[supervisor] = tc.places, own
			m.holds(2, 66)
			m.looks(3)
			if tc.told {
				reporttest.Told(t, m.node, "GPUUsedByNoPod", "(nvidia-cuda-mps) on GPU 0 is of the pod with UID tenant")
			} else if asked > 1 {
				t.Errorf("the supervisor was looked for %d times", asked)
			}
			expect.Equal(t, tc.asks, asked > 0, "the supervisor was looked for: %d times", asked)
			reporttest.Told(t, m.node)
			reporttest.Told(t, m.pods)
		})
	}
}

func TestLockHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	is := func(want int) {
		t.Helper()
		if pid, err := LockHolder("/proc", path); pid != want || err != nil {
			t.Errorf("it is locked by %d, %v, want %d", pid, err, want)
		}
	}
	is(0)
	f, err := os.Create(path)
	expect.NoError(t, err)
	defer f.Close()
	is(0)
	for how, want := range map[int]int{unix.LOCK_SH: 0, unix.LOCK_EX: os.Getpid(), unix.LOCK_UN: 0} {
		expect.NoError(t, unix.Flock(int(f.Fd()), how))
		is(want)
	}
	if pid, err := LockHolder(t.TempDir(), path); pid != 0 || err == nil {
		t.Errorf("without a procfs it is locked by %d", pid)
	}
	waits, proc := fmt.Sprintf("1: -> FLOCK  ADVISORY  WRITE 9 %s 0 EOF\n", identityOf(t, path)), t.TempDir()
	expect.NoError(t, os.WriteFile(filepath.Join(proc, "locks"), []byte(waits), 0o600))
	if pid, err := LockHolder(proc, path); pid != 0 || err != nil {
		t.Errorf("it is locked by %d, %v, who only waits", pid, err)
	}
}

func identityOf(t *testing.T, path string) string {
	var stat unix.Stat_t
	expect.NoError(t, unix.Stat(path, &stat))
	return fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
}

// Who writes pods can write any limits. What a device plugin gave to one, the kubelet says.
func TestPodsOfDevicePlugins(t *testing.T) {
	for name, tc := range map[string]struct {
		given  bool
		err    error
		claims []string
		told   bool
		asked  int
	}{
		"it was given devices":   {given: true, asked: 1},
		"it was given none":      {told: true, asked: 4},
		"the kubelet is silent":  {err: errors.New("no socket"), asked: 4},
		"none, and has no claim": {claims: []string{"a"}, told: true, asked: 4},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			m := newMachine(t, func(o *Options) {
				o.OfPlugin = func(_ context.Context, pod audit.Pod) (bool, error) {
					asked++
					if pod != (audit.Pod{Namespace: "team", Name: "p", UID: "uid-p"}) {
						t.Errorf("asked of %+v", pod)
					}
					return tc.given, tc.err
				}
			})
			pod := thePod()
			if tc.claims == nil {
				pod.Spec.ResourceClaims, pod.Spec.Containers[0].Resources.Claims = nil, nil
			}
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				"nvidia.com/mig-1g.5gb": resource.MustParse("1")}
			m.claims = nil
			m.Pods.Watched.Handler().OnAdd(pod, true)
			m.looks(20)
			if tc.told {
				reporttest.Told(t, m.pods, "GPUUsedWithoutGrant", `Container "main"`)
			}
			reporttest.Told(t, m.pods)
			expect.Equal(t, tc.asked, asked, "times the kubelet was asked in 40 s")
		})
	}
}
