// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

func TestPrepareShare(t *testing.T) {
	n := newNode(t)
	got := n.takes(t, sharesOf("u1", 2, 1, 7))
	if len(got) != 2 || got[1].DeviceName != "gpu-2-share" || got[1].PoolName != pool || *got[1].ShareID != "u1-share-1" ||
		!cmp.Equal(got[1].Requests, []string{"r1"}) {
		t.Fatalf("devices %+v", got)
	}
	want := []string{"NVIDIA_VISIBLE_DEVICES=void", "GPU_ALIYUN_COM_UUID_2=GPU-2", "ALIYUN_COM_GPU_MEM_CONTAINER=7",
		"ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=2", "ALIYUN_COM_GPU_MEM_POD=8"}
	expect.Equal(t, want, n.env(t, got[1].CDIDeviceIDs[0]), "environment of the second request")
	again, err := n.Prepare(t.Context(), sharesOf("u1", 2, 1, 7))
	if diff := cmp.Diff(got, again); diff != "" || err != nil {
		t.Errorf("second Prepare: %v, (-first +second):\n%s", err, diff)
	}
	expect.NoError(t, n.Unprepare(t.Context(), "u1"))
	n.leavesNothing(t)
	expect.NoErrorf(t, n.Unprepare(t.Context(), "u1"), "second Unprepare")
}

func TestPrepareRefusesOverCommit(t *testing.T) {
	n := newNode(t)
	n.takes(t, sharesOf("u1", 0, 12))
	n.refuses(t, sharesOf("u2", 0, 4), "promised twice")
	n.refuses(t, wholeGPUs("u2", 1, 0), "promised twice")
	if left := n.files(t); len(left) != 2 {
		t.Errorf("a refused claim left something behind: %v", left)
	}
}

func TestPrepareRefusesWhatPodsWithoutClaimHold(t *testing.T) {
	n := newNode(t)
	old := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "old", Name: "a",
			Annotations: map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "0"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("12")},
			}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	n.reserved = func(_ context.Context, m *gpu.Machine) (held.Reserved, error) {
		return deviceplugin.Of([]*corev1.Pod{old}, deviceplugin.Node{GPUs: m.GPUs}), nil
	}
	for name, c := range map[string]*resourceapi.ResourceClaim{"share": sharesOf("u2", 0, 4),
		"whole GPU": wholeGPUs("u2", 1, 0)} {
		if _, err := n.Prepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), "promised twice") ||
			!slices.Equal(usage.InUseBy(err), []string{"old/a"}) {
			t.Errorf("%s beside 12 of 15 GiB: %v", name, err)
		}
	}
	n.takes(t, sharesOf("u1", 0, 3))
	unread := errors.New("not read yet")
	n.reserved = func(context.Context, *gpu.Machine) (held.Reserved, error) {
		return held.Reserved{}, unread
	}
	if _, err := n.Prepare(t.Context(), sharesOf("u3", 1, 1)); !errors.Is(err, unread) {
		t.Errorf("while the pods are not known: %v", err)
	}
	// What is prepared stays so: its containers may have to be started again.
	n.takes(t, sharesOf("u1", 0, 3))
}

func TestConcurrentClaimsNeverOverCommit(t *testing.T) {
	n := newNode(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	granted := 0
	for i := range 24 {
		wg.Go(func() {
			_, err := n.Prepare(t.Context(), sharesOf(fmt.Sprintf("u%d", i), 0, 2))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				granted++
			} else if !strings.Contains(err.Error(), "promised twice") {
				t.Errorf("claim %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	expect.Equal(t, 7, granted, "shares of 2 GiB were granted on a GPU of 15 GiB")
}

func TestPrepareFailsBeforeAnyEffect(t *testing.T) {
	n := newNode(t)
	n.SetInventory(&Inventory{Machine: machine(),
		Base: fakeBase{missing: map[string]error{"GPU-1": errors.New("/dev/nvidia1 is missing")}}})
	n.refuses(t, wholeGPUs("u1", 0, 1), "GPU 1: /dev/nvidia1 is missing")
	n.SetInventory(nil)
	if _, err := n.Prepare(t.Context(), wholeGPUs("u1", 0)); !errors.Is(err, errNoInventory) {
		t.Errorf("without GPUs: %v", err)
	}
	n.leavesNothing(t)
}

func TestUnwritableCDIDirectory(t *testing.T) {
	n := newNode(t)
	// Root writes to any directory, so a file stands where one should be.
	blocked := filepath.Join(t.TempDir(), "cdi")
	expect.NoError(t, os.WriteFile(blocked, nil, 0o600))
	writable := n.options.Specs
	n.options.Specs = cdi.Dir(blocked)
	n.refuses(t, wholeGPUs("u1", 0), "CDI directory")
	n.options.Specs = writable
	n.takes(t, wholeGPUs("u1", 0)) // after the directory was repaired
}

func TestSpecThatVanishedIsWrittenAgain(t *testing.T) {
	n := newNode(t)
	first := n.takes(t, wholeGPUs("u1", 0))
	expect.NoError(t, n.options.Specs.Remove(cdi.SpecName("u1")))
	n.takes(t, wholeGPUs("u1", 0))
	n.env(t, first[0].CDIDeviceIDs[0])
}

func TestClaimAllocatedAnewIsPreparedAnew(t *testing.T) {
	n := newNode(t)
	n.takes(t, wholeGPUs("u1", 0))
	got, err := n.Prepare(t.Context(), wholeGPUs("u1", 3))
	if err != nil || got[0].DeviceName != "gpu-3" {
		t.Fatalf("devices %+v, %v: the old allocation was answered", got, err)
	}
	n.takes(t, wholeGPUs("u2", 0)) // the first GPU is free
	if err := n.Unprepare(t.Context(), "u2"); err != nil || !slices.Equal(n.released, []types.UID{"u1", "u2"}) {
		t.Errorf("%v; told to be taken back: %v", err, n.released)
	}
}

func TestDamagedRecordCostsOneClaim(t *testing.T) {
	n := newNode(t)
	for i := range 2 {
		n.takes(t, wholeGPUs(fmt.Sprintf("u%d", i), i))
	}
	expect.NoError(t, os.Truncate(filepath.Join(n.stateDir, "u0.json"), 20))
	n.restart(t)
	expect.NoError(t, n.Recover(t.Context()))
	expect.Equal(t, []types.UID{"u0"}, n.damaged, "reported as damaged")
	// The pod may be running: a container that is started again needs the spec.
	n.env(t, cdi.QualifiedName(cdi.DeviceName("u0", "gpu", "gpu-0", "")))
	for i := range 2 {
		n.takes(t, wholeGPUs(fmt.Sprintf("u%d", i), i))
	}
	for i := range 2 {
		expect.NoError(t, n.Unprepare(t.Context(), types.UID(fmt.Sprintf("u%d", i))))
	}
	n.leavesNothing(t)
}

func TestLimitsOffForTheNode(t *testing.T) {
	n := newNode(t)
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: "/proc/no_such_module"})
	capped := sharesOf("u1", 0, 3)
	capped.Status.Allocation.Devices.Results[0].Device = "gpu-0-mps"
	n.refuses(t, capped, "could not be limited by mps: gpu-mps-supervisor does not run")
	n.SetIsolationDisabled(true)
	got := n.takes(t, capped)
	env := strings.Join(n.env(t, got[0].CDIDeviceIDs[0]), " ")
	if strings.Contains(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") || !strings.Contains(env, "CGPU_DISABLE=true") ||
		len(n.limitsOff) != 1 {
		t.Errorf("environment %q, told of %v", env, n.limitsOff)
	}
	if _, err := n.Prepare(t.Context(), sharesOf("u2", 0, 13)); err == nil {
		t.Error("what was granted without limits does not count")
	}
}
