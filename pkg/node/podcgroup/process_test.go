// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestPlaces(t *testing.T) {
	const (
		uid    = "6f1c7a52-3b0e-4d2a-9a43-0b1d2c3e4f50"
		slice  = "6f1c7a52_3b0e_4d2a_9a43_0b1d2c3e4f50"
		inner  = "11111111-2222-3333-4444-555555555555"
		static = "0123456789abcdef0123456789abcdef"
	)
	id, other := strings.Repeat("0a", 32), strings.Repeat("f1", 32)
	pod := []Place{{Pod: uid, Container: id}}
	for name, tc := range map[string]struct {
		content string
		want    []Place
	}{
		"version 2, cgroupfs":             {"0::/kubepods/burstable/pod" + uid + "/" + id + "\n", pod},
		"version 2, guaranteed":           {"0::/kubepods/pod" + uid + "/" + id + "\n", pod},
		"version 2, below another root":   {"0::/nodes/n1/kubepods/besteffort/pod" + uid + "/" + id + "\n", pod},
		"seen from another group":         {"0::/../../pod" + uid + "/" + id + "\n", pod},
		"a group that the container made": {"0::/kubepods/pod" + uid + "/" + id + "/init/worker\n", pod},
		"version 2, systemd, containerd": {
			"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + slice + ".slice/cri-containerd-" + id +
				".scope\n", pod},
		"version 2, systemd, CRI-O": {
			"0::/kubepods.slice/kubepods-pod" + slice + ".slice/crio-" + id + ".scope/container\n", pod},
		"systemd, a runtime without it": {
			"0::/system.slice/containerd.service/kubepods-besteffort-pod" + slice + ".slice:cri-containerd:" + id + "\n", pod},
		"version 1, cgroupfs": {
			"12:pids:/kubepods/besteffort/pod" + uid + "/" + id + "\n11:devices:/kubepods/besteffort/pod" + uid + "/" + id +
				"\n1:name=systemd:/kubepods/besteffort/pod" + uid + "/" + id + "\n", pod},
		"version 1, a hierarchy without pods": {
			"13:rdma:/\n12:misc:/user.slice\n4:memory:/kubepods.slice/kubepods-pod" + slice + ".slice/cri-containerd-" + id +
				".scope\n0::/system.slice/containerd.service\n", pod},
		"a group that was removed": {"0::/kubepods/pod" + uid + "/" + id + " (deleted)\n", pod},
		"a static pod": {"0::/kubepods/burstable/pod" + static + "/" + id + "\n",
			[]Place{{Pod: static, Container: id}}},
		"the pod's own":   {"0::/kubepods/pod" + uid + "\n", []Place{{Pod: uid}}},
		"an unknown name": {"0::/kubepods/pod" + uid + "/something\n", []Place{{Pod: uid}}},
		"a node in a pod": {
			"0::/kubepods/pod" + uid + "/" + id + "/kubelet/kubepods/burstable/pod" + inner + "/" + other + "\n",
			[]Place{{Pod: uid, Container: id}, {Pod: inner, Container: other}}},
		"a service":              {"0::/system.slice/nvidia-persistenced.service\n", nil},
		"the root":               {"0::/\n", nil},
		"a name like a pod's":    {"0::/user.slice/podman-" + id + ".scope/pod-of-mine\n", nil},
		"no pod's UID":           {"0::/kubepods/podx/" + id + "\n", nil},
		"nothing":                {"", nil},
		"a line that is cut off": {"0", nil},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, tc.want, places([]byte(tc.content)), "places")
		})
	}
}

func TestProcessesOfAProcfs(t *testing.T) {
	uid := types.UID("6f1c7a52-3b0e-4d2a-9a43-0b1d2c3e4f50")
	proc := Processes(files(t, map[string]string{"12/cgroup": "0::/kubepods/pod" + string(uid) + "\n",
		"12/comm": "train\n"}))
	places, err := proc.Places(12)
	if err != nil || len(places) != 1 || places[0].Pod != uid {
		t.Errorf("process 12 is in %v, %v", places, err)
	}
	if program, err := proc.Program(12); program != "train" || err != nil {
		t.Errorf("process 12 runs %q, %v", program, err)
	}
	_, placesErr := proc.Places(13)
	_, programErr := proc.Program(13)
	for _, err := range []error{placesErr, programErr} {
		expect.ErrorIs(t, err, ErrEnded)
	}
	_, err = Processes("/proc").Places(os.Getpid())
	expect.NoErrorf(t, err, "this test's own process, by the kernel")
}

const aPod = "6f1c7a52-3b0e-4d2a-9a43-0b1d2c3e4f50"

func TestRemembered(t *testing.T) {
	const other = "11111111-2222-3333-4444-555555555555"
	dir := t.TempDir()
	put := func(pod, program string) {
		t.Helper()
		expect.NoError(t, errors.Join(os.MkdirAll(filepath.Join(dir, "7"), 0o755),
			os.WriteFile(filepath.Join(dir, "7", "cgroup"), []byte("0::/kubepods/pod"+pod+"\n"), 0o600),
			os.WriteFile(filepath.Join(dir, "7", "comm"), []byte(program+"\n"), 0o600)))
	}
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
	_, err := r.Places(7)
	expect.ErrorIs(t, err, ErrEnded)
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
