// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

// allocated is claim "a" with a device of that driver.
func allocated(driver, device string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Driver: driver, Pool: "n", Device: device}}}}}}
}

// slice is what that driver publishes of the node: the GPU, and a network card.
func slice(driver string) *resourceapi.ResourceSlice {
	value := func(v string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: &v}}
	}
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To("n"), Pool: resourceapi.ResourcePool{Name: "n"}, Devices: []resourceapi.Device{
			{Name: "gpu-0", Attributes: value(uuid)}, {Name: "nic-0", Attributes: value("nic")}}}}
}

// A pod that another driver gave the GPU is none of ours; one with a network GPU is.
func TestClaimsOfOtherDrivers(t *testing.T) {
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		told  bool
	}{
		"that GPU":                  {allocated("gpu.nvidia.com", "gpu-0"), false},
		"another device":            {allocated("gpu.nvidia.com", "nic-0"), true},
		"this driver, not recorded": {allocated("gpu.aliyun.com", "gpu-0"), false},
		"nothing": {&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team",
			Name: "a"}}, true},
		"a claim that does not exist": {&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team",
			Name: "b"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, nil, tc.claim, slice("gpu.nvidia.com"))
			m.claims = nil
			m.looks(10)
			if tc.told {
				reporttest.Told(t, m.pods, "GPUUsedWithoutGrant")
			}
			reporttest.Told(t, m.pods)
			gets := 0
			for _, a := range m.client.Actions() {
				if a.Matches("get", "resourceclaims") {
					gets++
				}
			}
			expect.Equal(t, 1, gets, "times the claim was read")
		})
	}
	t.Run("it cannot be read", func(t *testing.T) {
		m := newMachine(t, nil)
		m.claims = nil
		apitest.Answer(m.client, "get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("down")
		})
		m.looks(10)
		reporttest.Told(t, m.pods)
	})
	t.Run("its driver is away", func(t *testing.T) {
		m := newMachine(t, nil, allocated("gpu.nvidia.com", "gpu-0"))
		m.claims = nil
		m.looks(10)
		reporttest.Told(t, m.pods)
	})
	t.Run("its driver has withdrawn the device", func(t *testing.T) {
		m := newMachine(t, nil, allocated("gpu.nvidia.com", "gpu-7"), slice("gpu.nvidia.com"))
		m.claims = nil
		m.looks(10)
		reporttest.Told(t, m.pods)
	})
	t.Run("a device of no node", func(t *testing.T) {
		m := newMachine(t, nil, allocated("fabric", "nic-0"))
		m.claims = nil
		apitest.Answer(m.client, "list", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			list, ok := action.(clienttesting.ListAction)
			out := &resourceapi.ResourceSliceList{}
			if ok && list.GetListRestrictions().Fields.Matches(fields.Set{"spec.nodeName": "", "spec.driver": "fabric"}) {
				out.Items = append(out.Items, *slice("fabric"))
			}
			return true, out, nil
		})
		m.looks(10)
		reporttest.Told(t, m.pods, "GPUUsedWithoutGrant")
	})
	t.Run("the kubelet has told of it", func(t *testing.T) {
		m := newMachine(t, func(o *Options) {
			o.OfDriver = func(pod audit.Pod, gpu string) bool { return pod.UID == "uid-p" && gpu == uuid }
		}, allocated("gpu.nvidia.com", "gpu-0"))
		m.claims = nil
		m.looks(10)
		reporttest.Told(t, m.pods)
		if actions := m.client.Actions(); len(actions) > 0 {
			t.Errorf("the API server was asked: %v", actions)
		}
	})
}

// The kubelet removes the ResourceSlices of a driver that is away, and its pods go on.
func TestPodsOfADriverThatIsAwayStay(t *testing.T) {
	m := newMachine(t, evicts(audit.NoGrant), allocated("gpu.nvidia.com", "gpu-0"), slice("gpu.nvidia.com"))
	asked := m.evictions(func() error { return nil })
	m.claims = nil
	m.looks(5)
	expect.NoError(t, m.client.ResourceV1().ResourceSlices().Delete(t.Context(), "s", metav1.DeleteOptions{}))
	m.clock.Step(knownFor + time.Minute)
	m.looks(60)
	reporttest.Told(t, m.pods)
	expect.Equal(t, 0, len(*asked), "evictions %v", *asked)
}

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
