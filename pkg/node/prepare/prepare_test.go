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

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

func TestPrepareShare(t *testing.T) {
	n := newNode(t)
	got := n.takes(t, sharesOf("u1", 2, 1, 7))
	if len(got) != 2 || got[1].DeviceName != "gpu-2-share" || got[1].PoolName != pool || *got[1].ShareID != "u1-share-1" ||
		expect.Diff(got[1].Requests, []string{"r1"}) != nil {
		t.Fatalf("devices %+v", got)
	}
	want := []string{"NVIDIA_VISIBLE_DEVICES=void", "GPU_ALIYUN_COM_UUID_2=GPU-2", "ALIYUN_COM_GPU_MEM_CONTAINER=7",
		"ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=2", "ALIYUN_COM_GPU_MEM_POD=8"}
	expect.Equal(t, want, n.env(t, got[1].CDIDeviceIDs[0]), "environment of the second request")
	expect.Equal(t, got, n.takes(t, sharesOf("u1", 2, 1, 7)), "devices of the second Prepare")
	n.givesBack(t, "u1", "u1")
	n.leavesNothing(t)
}

func TestPrepareRefusesOverCommit(t *testing.T) {
	n := newNode(t)
	n.takes(t, sharesOf("u1", 0, 12))
	n.refuses(t, sharesOf("u2", 0, 4), "promised twice")
	n.refuses(t, wholeGPUs("u2", 1, 0), "promised twice")
	expect.Equal(t, 2, len(n.files(t)), "files beside what a refused claim left: %v", n.files(t))
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
	expect.ErrorIs(t, n.refuses(t, sharesOf("u3", 1, 1), "not read yet"), unread)
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
	expect.ErrorIs(t, n.refuses(t, wholeGPUs("u1", 0), errNoInventory.Error()), errNoInventory)
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
	expect.Equal(t, "gpu-3", n.takes(t, wholeGPUs("u1", 3))[0].DeviceName, "the device of the new allocation")
	n.takes(t, wholeGPUs("u2", 0)) // the first GPU is free
	n.givesBack(t, "u2")
	expect.Equal(t, []types.UID{"u1", "u2"}, n.released, "told to be taken back")
}

func TestDamagedRecordCostsOneClaim(t *testing.T) {
	n := newNode(t)
	n.takes(t, wholeGPUs("u0", 0), wholeGPUs("u1", 1))
	expect.NoError(t, os.Truncate(filepath.Join(n.stateDir, "u0.json"), 20))
	n.restart(t)
	expect.NoError(t, n.Recover(t.Context()))
	expect.Equal(t, []types.UID{"u0"}, n.damaged, "reported as damaged")
	// The pod may be running: a container that is started again needs the spec.
	n.env(t, cdi.QualifiedName(cdi.DeviceName("u0", "gpu", "gpu-0", "")))
	n.takes(t, wholeGPUs("u0", 0), wholeGPUs("u1", 1))
	n.givesBack(t, "u0", "u1")
	n.leavesNothing(t)
}

func TestLimitsOffForTheNode(t *testing.T) {
	n := newNode(t)
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: "/proc/no_such_module"})
	capped := on(sharesOf("u1", 0, 3), "gpu-0-mps")
	n.refuses(t, capped, "could not be limited by mps: gpu-mps-supervisor does not run")
	n.SetIsolationDisabled(true)
	got := n.takes(t, capped)
	env := strings.Join(n.env(t, got[0].CDIDeviceIDs[0]), " ")
	if strings.Contains(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") || !strings.Contains(env, "CGPU_DISABLE=true") ||
		len(n.limitsOff) != 1 {
		t.Errorf("environment %q, told of %v", env, n.limitsOff)
	}
	n.refuses(t, sharesOf("u2", 0, 13), "promised twice") // what was granted without limits counts
}

// A scheduler can write an allocation long after the devices that it is from were
// closed, and replaced by those of another mode.
func TestPrepareRefusesDevicesOfAnotherMode(t *testing.T) {
	for name, tc := range map[string]struct {
		published mode.Mode
		device    string
		want      string
	}{
		"share where GPUs are whole": {mode.Exclusive, "gpu-0-share", `"gpu-0-share" of mode share, but the node has ` +
			`changed to mode exclusive since: delete the pod`},
		"whole GPU where it is shared":   {mode.Share, "gpu-0", "has changed to mode share"},
		"share with limits without them": {mode.Share, "gpu-0-cgpu", "has changed to mode share"},
		"set of GPUs":                    {mode.Exclusive, "gpus-0-1", "has changed to mode exclusive"},
		"GPU of a set on a dynamic one":  {mode.Dynamic, "gpu-0-topology", "has changed to mode dynamic"},
		"nothing is published":           {"", "gpu-0", "offers no GPUs now"},
		"share":                          {mode.Share, "gpu-0-share", ""},
		"share of a dynamic node":        {mode.Dynamic, "gpu-0-share", ""},
		"whole GPU of a dynamic node":    {mode.Dynamic, "gpu-0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.published = tc.published
			n.refuses(t, on(sharesOf("u1", 0, 1), tc.device), tc.want)
			if tc.want != "" {
				n.leavesNothing(t)
			}
		})
	}
}

// A monitor's claim does not hold the node's mode, and is not ended by its change.
func TestPrepareForAnAdministratorInAnyMode(t *testing.T) {
	n := newNode(t)
	n.published = mode.Exclusive
	n.takes(t, forAdmin(sharesOf("u1", 0, 0)))
}

func TestWhatIsPreparedStaysSoInAnyMode(t *testing.T) {
	n := newNode(t)
	n.takes(t, sharesOf("u1", 0, 1))
	n.published = mode.Exclusive
	n.takes(t, sharesOf("u1", 0, 1))
}

// Between a claim's first check and its record the node may change its mode.
func TestModeThatChangesWhileAClaimIsPrepared(t *testing.T) {
	n := newNode(t)
	n.reserved = func(ctx context.Context, _ *gpu.Machine) (held.Reserved, error) {
		return held.Reserved{}, n.WithNodeLocked(ctx, func([]state.Record) error {
			n.published = mode.Exclusive
			return nil
		})
	}
	n.refuses(t, sharesOf("u1", 0, 1), "has changed to mode exclusive")
	n.leavesNothing(t)
}

// While the node waits to isolate its GPUs in another way, claims that are
// allocated get what they were offered.
func TestPrepareIsolatesAsPublished(t *testing.T) {
	n := newNode(t)
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: t.TempDir()})
	n.published, n.isolated = mode.CGPU, map[mode.Mode]string{mode.CGPU: "mps"}
	c := on(sharesOf("u1", 0, 1), "gpu-0-cgpu")
	n.refuses(t, c, "could not be limited by mps")
	n.isolated = map[mode.Mode]string{mode.CGPU: "cgpu"}
	n.reserved = func(context.Context, *gpu.Machine) (held.Reserved, error) {
		n.isolated = map[mode.Mode]string{mode.CGPU: "mps"}
		return held.Reserved{}, nil
	}
	n.refuses(t, c, "changed from cgpu to mps at this moment")
	n.isolated, n.reserved = nil, nil
	n.takes(t, c) // isolation is not remembered
}

// On a node that is closed for a change of its mode no claim is prepared that tolerates
// that; one that does not was allocated before, and what is prepared stays so.
func TestClosedNodeTakesNoClaimThatToleratesIt(t *testing.T) {
	n := newNode(t)
	tolerating := func(uid string, index int) *resourceapi.ResourceClaim {
		c := wholeGPUs(uid, index)
		c.Status.Allocation.Devices.Results[0].Tolerations = []resourceapi.DeviceToleration{
			{Operator: resourceapi.DeviceTolerationOpExists}}
		return c
	}
	n.takes(t, tolerating("before", 0))
	n.draining = true
	n.takes(t, tolerating("before", 0), wholeGPUs("late", 1))
	n.refuses(t, tolerating("after", 2), "takes no further claims, whatever they tolerate")
	n.takes(t, forAdmin(tolerating("monitor", 3)))
	// MIG instances stay open, and hold no change up.
	n.has(cut(at(0, "MIG-a")))
	instance := instanceClaim("instance", "gpu-4-mig-1g-10gb-0")
	instance.Status.Allocation.Devices.Results[0].Tolerations =
		tolerating("", 0).Status.Allocation.Devices.Results[0].Tolerations
	n.takes(t, instance)
}

// What is recorded as a claim's limit, which status, metadata, metrics and audit use, is what it
// is held to: Alibaba's module works out its own, of all of the GPU's memory. So is what is recorded
// again after the record was lost, alone or with what the node knows of its own GPUs.
func TestLimitsAreWithoutWhatTheDriverKeeps(t *testing.T) {
	for isolatedBy, want := range map[string]int64{"none": 2982, "cgpu": 3072} {
		n := newNode(t)
		n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: t.TempDir()})
		t4 := gpu.GPU{UUID: "GPU-0", MemoryMiB: 15360, ReservedMiB: 450}
		n.SetInventory(&Inventory{Machine: &gpu.Machine{GPUs: []gpu.GPU{t4}}, Base: fakeBase{}})
		c := sharesOf("u1", 0, 3)
		if isolatedBy == "cgpu" {
			n.published, n.isolated = mode.CGPU, map[mode.Mode]string{mode.CGPU: isolatedBy}
			on(c, "gpu-0-cgpu")
		}
		if got := n.prepared(t, c)[0].Grants[0]; got.CapMiB() != want || got.Isolation != isolatedBy {
			t.Errorf("3 of 15 GiB of a T4 by %s: %d MiB by %s, want %d", isolatedBy, got.CapMiB(), got.Isolation, want)
		}
		for range 2 {
			expect.NoError(t, os.Remove(filepath.Join(n.stateDir, "u1.json")))
			expect.NoError(t, n.repairer().Repair(t.Context()))
			if got := n.recordOf(t, "u1").Grants[0]; got.CapMiB() != want || got.Isolation != isolatedBy {
				t.Errorf("once it was lost: %d MiB by %s, want %d by %s", got.CapMiB(), got.Isolation, want, isolatedBy)
			}
			n.published, n.isolated, n.api.shown = "", nil, n.isolated
		}
	}
}

// What Prepare and Unprepare cost beside others' claims. Most of it is one fsync.
func BenchmarkPrepare(b *testing.B) {
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"share": sharesOf("u1", 0, 3), "whole": wholeGPUs("u1", 0, 1),
	} {
		b.Run(name, func(b *testing.B) {
			ctx := klog.NewContext(b.Context(), klog.Logger{})
			n := newNode(b)
			n.takes(b, sharesOf("u2", 2, 1), sharesOf("u3", 3, 5, 5))
			for b.Loop() {
				if _, err := n.Prepare(ctx, c); err != nil {
					b.Fatal(err)
				}
				expect.NoError(b, n.Unprepare(ctx, c.UID))
			}
		})
	}
}

func TestReasons(t *testing.T) {
	plain := errors.New("no")
	for name, c := range map[string]struct {
		err  error
		want Reason
	}{
		"none":      {nil, ""},
		"of a step": {fmt.Errorf("around: %w", withReason(ReasonInvalid, plain)), ReasonInvalid},
		"the inner": {withReason(ReasonInvalid, fmt.Errorf("around: %w", withReason(ReasonNotServed, plain))),
			ReasonNotServed},
		"beside another": {errors.Join(withReason(ReasonNotStartable, plain), plain), ReasonNotStartable},
		"the API server": {withReason(ReasonInvalid, apierrors.NewForbidden(resourceapi.Resource("pods"), "p", plain)),
			ReasonAPIServer},
		"time":             {withReason(ReasonInvalid, fmt.Errorf("around: %w", context.DeadlineExceeded)), ReasonTimeout},
		"anything of ours": {plain, ReasonNode},
	} {
		expect.Equal(t, c.want, ReasonOf(c.err), "%s", name)
	}
	if err := withReason(ReasonInvalid, plain); err.Error() != "no" || !errors.Is(err, plain) {
		t.Errorf("with a reason %v is %v", plain, err)
	}
}
