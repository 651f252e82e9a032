// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// limitedNode is a node whose MPS daemons all serve, and which limits mode cgpu by
// HAMi-core. Its pod's main container uses claims as told.
func limitedNode(t *testing.T, claims []*resourceapi.ResourceClaim, used ...corev1.ResourceClaim) *node {
	t.Helper()
	n := newNode(t)
	dir, _ := n.supervised(t)
	n.options.Isolation = isolation.NewRegistry(isolation.Config{
		MPSDir: string(dir), CGPUProc: "/proc/no_such_module", CGPU: mode.IsolationHAMi, HostHAMiLibrary: "/dev/null",
		HAMiLibrary: "/dev/null", HAMiDir: t.TempDir(),
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Claims: used}}}},
	}
	for _, c := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims,
			corev1.PodResourceClaim{Name: string(c.UID), ResourceClaimName: &c.Name})
	}
	n.api.Claims, n.api.user = claims, pod
	return n
}

// supervised has the node's shares limited by MPS, whose daemons all serve until the returned function is called.
func (n *node) supervised(t *testing.T) (dir mps.Dir, release func() error) {
	t.Helper()
	dir = mps.Dir(t.TempDir())
	release, err := dir.Hold()
	expect.NoError(t, err)
	t.Cleanup(func() { _ = release() })
	for _, g := range machine().GPUs {
		expect.NoError(t, dir.SetStatus(g.UUID, mps.Status{State: mps.Ready}))
	}
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
	return dir, release
}

// uses are the claims, or requests of them, that a container uses: "u1" or "u1/r0".
func uses(used ...string) (claims []corev1.ResourceClaim) {
	for _, of := range used {
		name, request, _ := strings.Cut(of, "/")
		claims = append(claims, corev1.ResourceClaim{Name: name, Request: request})
	}
	return claims
}

// switchedOff switches the limits of the claim's request r0 off.
func switchedOff(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	return configured(c, "r0", `"disableIsolation":true`)
}

// on moves the claim's shares to these devices, in order.
func on(c *resourceapi.ResourceClaim, devices ...string) *resourceapi.ResourceClaim {
	for i, device := range devices {
		c.Status.Allocation.Devices.Results[i].Device = device
	}
	return c
}

func configured(c *resourceapi.ResourceClaim, request, fields string) *resourceapi.ResourceClaim {
	return configuredFor(c, "gpu.aliyun.com",
		`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig",`+fields+`}`, request)
}

// forContainers has the claim's two requests be for these containers.
func forContainers(c *resourceapi.ResourceClaim, first, second string) *resourceapi.ResourceClaim {
	return configured(configured(c, "r0", fmt.Sprintf(`"container":%q`, first)), "r1",
		fmt.Sprintf(`"container":%q`, second))
}

// configuredFor adds parameters for a driver to the claim, for the requests, or for all of them.
func configuredFor(c *resourceapi.ResourceClaim, driver, parameters string, requests ...string,
) *resourceapi.ResourceClaim {
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config,
		resourceapi.DeviceAllocationConfiguration{
			Source: resourceapi.AllocationConfigSourceClaim, Requests: requests,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}},
		})
	return c
}

// What a container has of several requests on one GPU adds up, in all that it is told.
func TestLimitsOfAContainerAddUp(t *testing.T) {
	whole := uses("u1")
	legacy := []string{"ALIYUN_COM_GPU_MEM_CONTAINER=8", "ALIYUN_COM_GPU_MEM_IDX=0", "ALIYUN_COM_GPU_MEM_POD=8"}
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		uses  []corev1.ResourceClaim
		want  []string
	}{
		"MPS, by configuration": {forContainers(on(sharesOf("u1", 0, 1, 7), "gpu-0-mps", "gpu-0-mps"), "main", "main"), nil,
			append(legacy, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8602M")},
		"MPS, a whole claim": {on(sharesOf("u1", 0, 1, 7), "gpu-0-mps", "gpu-0-mps"), whole,
			append(legacy, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8602M")},
		"HAMi-core, a whole claim": {on(sharesOf("u1", 0, 1, 7), "gpu-0-cgpu", "gpu-0-cgpu"), whole,
			append(legacy, "CUDA_DEVICE_MEMORY_LIMIT_0=8602m")},
		"HAMi-core, GPUs unordered": {on(sharesOf("u1", 0, 1, 7), "gpu-2-cgpu", "gpu-1-cgpu"), whole,
			[]string{"CUDA_DEVICE_MEMORY_LIMIT_0=7527m", "CUDA_DEVICE_MEMORY_LIMIT_1=1075m"}},
		"MPS, requests of their own": {on(sharesOf("u1", 0, 1, 7), "gpu-0-mps", "gpu-0-mps"),
			uses("u1/r0"), []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1075M"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim}, tc.uses...)
			got := n.takes(t, tc.claim)
			env := n.env(t, got[0].CDIDeviceIDs[0])
			for _, want := range tc.want {
				if !slices.Contains(env, want) {
					t.Errorf("environment %q, want %s in it", env, want)
				}
			}
			expect.NoError(t, n.Recover(t.Context()))
			expect.Equal(t, env, n.env(t, got[0].CDIDeviceIDs[0]), "environment by a spec that is written again")
		})
	}
}

func TestAContainerHasLimitsOfOneKind(t *testing.T) {
	share := func(uid, device string) *resourceapi.ResourceClaim { return on(sharesOf(uid, 0, 1), device) }
	network := emptyClaim("u2")
	network.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		{Request: "nic", Driver: "nic.example.com", Pool: "n1", Device: "eth1"}}
	unallocated := emptyClaim("u2")
	unallocated.Status.Allocation = nil
	mixed := forContainers(on(sharesOf("u1", 0, 1, 1), "gpu-0-mps", "gpu-0-mps"), "a", "b")
	both := uses("u1", "u2")
	for name, tc := range map[string]struct {
		first, second *resourceapi.ResourceClaim
		uses          []corev1.ResourceClaim
		want          string // what the refusal says; empty where there is none
	}{
		"two GPUs by MPS": {share("u1", "gpu-0-mps"), share("u2", "gpu-1-mps"), both,
			`container "main" of pod p: it would have GPU 1 by request "r0" of claim claim-u2 beside GPU 0 by request "r0" ` +
				`of claim claim-u1, but with MPS a process can use one GPU`},
		"two GPUs by MPS, without limits": {share("u1", "gpu-0-mps"),
			switchedOff(share("u2", "gpu-1-mps")), both, "with MPS a process can use one GPU"},
		"two shares of a GPU by MPS": {share("u1", "gpu-0-mps"), share("u2", "gpu-0-mps"), both,
			"each have limits of their own"},
		"two GPUs by HAMi-core": {share("u1", "gpu-0-cgpu"), share("u2", "gpu-1-cgpu"), both,
			"HAMi-core tells GPUs by their number"},
		"a share and a whole GPU": {share("u1", "gpu-0-mps"), wholeGPUs("u2", 1), both,
			"with MPS a process can use one GPU"},
		"requests that are for others": {mixed, network, both, "names no other container"},
		"a second container's":         {share("u1", "gpu-0-mps"), share("u2", "gpu-1-mps"), both[:1], ""},
		"a request that has none of its GPUs": {share("u1", "gpu-0-mps"), share("u2", "gpu-1-mps"),
			uses("u1", "u2/other"), ""},
		"a device of another driver":   {share("u1", "gpu-0-mps"), network, both, ""},
		"a claim without a device yet": {share("u1", "gpu-0-mps"), unallocated, both, ""},
		"one whose limits are off":     {share("u1", "gpu-0-mps"), switchedOff(share("u2", "gpu-0-mps")), both, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := limitedNode(t, []*resourceapi.ResourceClaim{tc.first, tc.second}, tc.uses...)
			n.refuses(t, tc.first, tc.want)
			if tc.want != "" {
				n.leavesNothing(t)
			}
		})
	}
}

// Each container of a share could take all of it: no more have it than may.
func TestContainersPerShare(t *testing.T) {
	const refused = `request "r0": 3 containers share 1 GiB, and each could take all of it: a share may have 2 containers`
	container := func(name, used string) corev1.Container {
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Claims: uses(used)}}
	}
	three := []corev1.Container{container("a", "u1/r0"), container("b", "u1"), container("c", "u1/r0")}
	for name, tc := range map[string]struct {
		claim      *resourceapi.ResourceClaim
		containers []corev1.Container
		most       int
		want       string // what the refusal says; empty where there is none
	}{
		"as many as may": {on(sharesOf("u1", 0, 1), "gpu-0-mps"), three[:2], 2, ""},
		"one more":       {on(sharesOf("u1", 0, 1), "gpu-0-mps"), three, 2, refused},
		"by HAMi-core":   {on(sharesOf("u1", 0, 1), "gpu-0-cgpu"), three, 2, refused},
		"any number":     {on(sharesOf("u1", 0, 1), "gpu-0-mps"), three, 0, ""},
		"a request each": {on(sharesOf("u1", 0, 1, 7), "gpu-0-mps", "gpu-0-mps"),
			[]corev1.Container{container("a", "u1/r0"), container("b", "u1/r1"), container("c", "u1/r0")}, 2, ""},
		"what nothing is to hold": {switchedOff(on(sharesOf("u1", 0, 1), "gpu-0-mps")), three, 2, ""},
		"a mode without limits":   {sharesOf("u1", 0, 1), three, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim})
			n.options.ContainersPerShare = tc.most
			n.api.user.Spec.Containers = tc.containers
			n.refuses(t, tc.claim, tc.want)
			if tc.want != "" {
				n.leavesNothing(t)
			}
		})
	}
}

// A Job's pods may use a claim one after the other. Whenever its status changes, Kubernetes reserves it again for a
// moment for those that have ended (kubernetes/kubernetes issue 141274).
func TestPodsThatHaveEndedHaveNoShare(t *testing.T) {
	c := on(sharesOf("u1", 0, 1), "gpu-0-mps")
	n := limitedNode(t, []*resourceapi.ResourceClaim{c}, uses("u1")...)
	n.options.ContainersPerShare = 1
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		ended := n.api.user.DeepCopy()
		ended.Name, ended.Status.Phase = c.Name, phase
		n.api.pods = append(n.api.pods, ended)
	}
	n.refuses(t, c, "")
	n.api.pods[0].Status.Phase = corev1.PodRunning
	n.givesBack(t, c.UID)
	n.refuses(t, c, "2 containers share 1 GiB")
}

// With MPS each container has one GPU; the claim may have more.
func TestWithMPSAContainerHasOneGPU(t *testing.T) {
	const refused = `with MPS a container has to be on one GPU`
	requests := func(devices ...string) *resourceapi.ResourceClaim { return on(sharesOf("u1", 0, 1, 7), devices...) }
	twice := requests("gpu-0-mps", "gpu-1-mps")
	twice.Status.Allocation.Devices.Results[1].Request = "r0"
	mixed := requests("gpu-0-mps", "gpu-1-core-mem")
	mixed.Status.Allocation.Devices.Results[1].ConsumedCapacity["cores"] = resource.MustParse("5")
	apart := []int{1075, 7527}
	for name, tc := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		uses   []corev1.ResourceClaim
		want   string // what the refusal says; empty where there is none
		limits []int  // of each request, in MiB
	}{
		"a request each":                     {requests("gpu-0-mps", "gpu-1-mps"), uses("u1/r1"), "", apart},
		"a container each, by configuration": {forContainers(requests("gpu-0-mps", "gpu-1-mps"), "a", "b"), nil, "", apart},
		"both, of a claim":                   {requests("gpu-0-mps", "gpu-1-mps"), uses("u1"), refused, nil},
		"both, one by one":                   {requests("gpu-0-mps", "gpu-1-mps"), uses("u1/r0", "u1/r1"), refused, nil},
		"both, by configuration": {forContainers(requests("gpu-0-mps", "gpu-1-mps"), "a", "a"), nil, refused,
			nil},
		"both, each configured for another": {forContainers(requests("gpu-0-mps", "gpu-1-mps"), "a", "b"),
			uses("u1"), "with MPS a process can use one GPU", nil},
		"both, of modes that MPS limits":        {mixed, uses("u1"), "with MPS a process can use one GPU", nil},
		"a request for two":                     {twice, nil, refused, nil},
		"both, on one GPU":                      {requests("gpu-1-mps", "gpu-1-mps"), uses("u1"), "", []int{8602, 8602}},
		"one, and a GPU that nobody is told of": {requests("gpu-0-mps", "gpu-1-mps"), nil, "", apart},
	} {
		t.Run(name, func(t *testing.T) {
			n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim}, tc.uses...)
			if tc.want != "" {
				n.refuses(t, tc.claim, tc.want)
				n.leavesNothing(t)
				return
			}
			got := n.takes(t, tc.claim)
			for i, mebibytes := range tc.limits {
				want := fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", mebibytes)
				if env := n.env(t, got[i].CDIDeviceIDs[0]); !slices.Contains(env, want) {
					t.Errorf("environment %q of request %d, want %s in it", env, i, want)
				}
			}
			// The kubelet asks again for a claim that is prepared.
			n.takes(t, tc.claim)
		})
	}
}

// What limits several GPUs of a container counts all of them. A container that has some of them would be held to the
// limits of others, or have none: but for the first ones, and where HAMi-core has one limit for all of them.
func TestAContainerHasAllGPUsThatAreLimitedTogether(t *testing.T) {
	const refused = `container "b" of pod p: it would have GPU 1 alone of GPU 0, GPU 1, which claim claim-u1 has ` +
		`together for container "a"`
	whole := uses("u1")
	both := uses("u1/r0", "u1/r1")
	byMPS := map[string]bool{mode.IsolationMPSNode: true}
	byHAMi := map[string]bool{mode.IsolationHAMi: true}
	byBoth := map[string]bool{mode.IsolationHAMi: true, mode.IsolationMPSNode: true}
	for name, tc := range map[string]struct {
		gpus [2]int
		gib  [2]int64
		// a and b are what the containers of these names use.
		a, b    []corev1.ResourceClaim
		off     bool // limits are
		refused map[string]bool
	}{
		"the whole claim, and a request": {[2]int{0, 1}, [2]int64{1, 7}, whole, both[1:], false, byBoth},
		"both requests, and one":         {[2]int{0, 1}, [2]int64{1, 7}, both, both[1:], false, byBoth},
		"without limits":                 {[2]int{0, 1}, [2]int64{1, 7}, whole, both[1:], true, byMPS},
		"the whole claim, both":          {[2]int{0, 1}, [2]int64{1, 7}, whole, whole, false, nil},
		"a request each":                 {[2]int{0, 1}, [2]int64{1, 7}, both[:1], both[1:], false, nil},
		"a request, on one GPU":          {[2]int{1, 1}, [2]int64{1, 7}, whole, both[1:], false, nil},
		"one that uses no claim":         {[2]int{0, 1}, [2]int64{1, 7}, whole, nil, false, nil},
		"the first GPU":                  {[2]int{0, 1}, [2]int64{1, 7}, whole, both[:1], false, nil},
		"the second, of equal limits":    {[2]int{0, 1}, [2]int64{7, 7}, whole, both[1:], false, byMPS},
		"the second, that is told first": {[2]int{1, 0}, [2]int64{1, 7}, whole, both[:1], false, byHAMi},
	} {
		for backend, m := range map[string]mode.Mode{mode.IsolationHAMi: mode.CGPU, mode.IsolationMPSNode: mode.MPS} {
			t.Run(name+" "+backend, func(t *testing.T) {
				c := on(sharesOf("u1", 0, tc.gib[:]...), fmt.Sprintf("gpu-%d-%s", tc.gpus[0], m),
					fmt.Sprintf("gpu-%d-%s", tc.gpus[1], m))
				if tc.off {
					c = configured(configured(c, "r0", `"disableIsolation":true`), "r1", `"disableIsolation":true`)
				}
				n := limitedNode(t, []*resourceapi.ResourceClaim{c}, tc.a...)
				n.isolated = map[mode.Mode]string{m: backend}
				containers := &n.api.user.Spec.Containers
				(*containers)[0].Name = "a"
				*containers = append(*containers, corev1.Container{Name: "b",
					Resources: corev1.ResourceRequirements{Claims: tc.b}})
				_, err := n.Prepare(t.Context(), c)
				// The daemon for all GPUs does not run here, which is told of what is not refused.
				if got := err != nil && strings.Contains(err.Error(), refused); got != tc.refused[backend] {
					t.Errorf("refused %t: %v", got, err)
				}
				if backend == mode.IsolationHAMi && err != nil && !tc.refused[backend] {
					t.Error(err)
				}
			})
		}
	}
}

// Requests for one container, which has them all, say the same of its GPUs.
func TestRequestsOfOneContainer(t *testing.T) {
	n := newNode(t)
	c := on(sharesOf("u1", 0, 4, 1, 4, 1), "gpu-1-share", "gpu-1-share", "gpu-2-share", "gpu-2-share")
	for container, requests := range map[string][]string{"a": {"r0", "r2"}, "b": {"r1", "r3"}} {
		configuredFor(c, "gpu.aliyun.com", fmt.Sprintf(
			`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","container":%q}`, container), requests...)
	}
	got := n.takes(t, c)
	for i, units := range []int{4, 1, 4, 1} {
		want := []string{"NVIDIA_VISIBLE_DEVICES=void", "GPU_ALIYUN_COM_UUID_1=GPU-1", "GPU_ALIYUN_COM_UUID_2=GPU-2",
			fmt.Sprintf("ALIYUN_COM_GPU_MEM_CONTAINER=%d", units),
			"ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=1,2",
			"ALIYUN_COM_GPU_MEM_POD=10"}
		expect.Equal(t, want, n.env(t, got[i].CDIDeviceIDs[0]), "environment of request %d", i)
	}
}
