// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// chained is a node whose GPUs are linked 0–2–1–3.
func chained(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.published = mode.Topology
	m := machine()
	for _, pair := range [][2]int{{0, 2}, {1, 2}, {1, 3}} {
		m.Links = append(m.Links, gpu.Link{A: pair[0], B: pair[1], Kind: gpu.LinkNVLink, GBps: 50})
	}
	n.SetInventory(&Inventory{Machine: m, Base: fakeBase{}})
	return n
}

func devicesOf(uid string, names ...string) *resourceapi.ResourceClaim {
	return claimOf(uid, "cards/linked", names...)
}

// nodes are the device nodes that a CDI device brings.
func (n *node) nodes(t *testing.T, id string) []string {
	t.Helper()
	cache, err := upstream.NewCache(upstream.WithSpecDirs(n.cdiDir), upstream.WithAutoRefresh(false))
	expect.NoError(t, err)
	var paths []string
	for _, d := range cache.GetDevice(id).ContainerEdits.DeviceNodes {
		paths = append(paths, d.Path)
	}
	return paths
}

func TestPrepareSet(t *testing.T) {
	n := chained(t)
	c := devicesOf("u1", "gpus-0-1-2-3")
	got := n.takes(t, c)
	if len(got) != 1 || got[0].DeviceName != "gpus-0-1-2-3" || len(got[0].CDIDeviceIDs) != 1 {
		t.Fatalf("devices %+v, want one for the one result", got)
	}
	id := got[0].CDIDeviceIDs[0]
	expect.Equal(t, []string{"/dev/GPU-0", "/dev/GPU-1", "/dev/GPU-2", "/dev/GPU-3"}, n.nodes(t, id), "device nodes")
	wantEnv := []string{"NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES=GPU-0,GPU-2,GPU-1,GPU-3",
		"GPU_ALIYUN_COM_UUID_0=GPU-0", "GPU_ALIYUN_COM_UUID_1=GPU-1", "GPU_ALIYUN_COM_UUID_2=GPU-2",
		"GPU_ALIYUN_COM_UUID_3=GPU-3"}
	expect.Equal(t, wantEnv, n.env(t, id), "environment")
	again, err := n.Prepare(t.Context(), c)
	if diff := cmp.Diff(got, again); diff != "" || err != nil {
		t.Errorf("second Prepare: %v, (-first +second):\n%s", err, diff)
	}
	// Its GPUs are taken, every one.
	n.refuses(t, devicesOf("u2", "gpu-2-topology"), "held as a whole by claim team/claim-u1")
	// A new process has the same, though nobody tells it of the pod again.
	n.restart(t)
	n.api.err = errors.New("asked again")
	expect.NoError(t, n.Recover(t.Context()))
	expect.Equal(t, wantEnv, n.env(t, id), "environment after a restart")
	expect.NoError(t, n.Unprepare(t.Context(), "u1"))
	n.leavesNothing(t)
}

func TestPrepareSetWithALostGPU(t *testing.T) {
	n := chained(t)
	m := machine()
	m.GPUs = m.GPUs[:3]
	n.SetInventory(&Inventory{Machine: m, Base: fakeBase{}})
	n.refuses(t, devicesOf("u1", "gpus-2-3"), "GPU 3 is no longer usable")
	n.leavesNothing(t)
}

func TestOrderOfGPUs(t *testing.T) {
	beside := func(claims ...*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim { return claims }
	nic := emptyClaim("nic")
	unallocated := emptyClaim("none")
	unallocated.Status.Allocation = nil
	two := devicesOf("u1", "gpu-0-topology", "gpu-1-topology")
	two.Status.Allocation.Devices.Results[1].Request = "more"
	none := configuredFor(devicesOf("u1", "gpus-0-1-2"), "gpu.aliyun.com",
		`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","env":"None"}`)
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		// env is a variable that the pod's container sets, beside what else it uses.
		env    string
		beside []*resourceapi.ResourceClaim
		want   string
	}{
		"single GPUs": {devicesOf("u1", "gpu-0-topology", "gpu-1-topology", "gpu-2-topology"), "", nil,
			"CUDA_VISIBLE_DEVICES=GPU-0,GPU-2,GPU-1"},
		"one GPU":                     {devicesOf("u1", "gpu-0-topology"), "", nil, ""},
		"the pod sets its own":        {devicesOf("u1", "gpus-0-1-2"), "CUDA_VISIBLE_DEVICES", nil, ""},
		"two requests":                {two, "", nil, ""},
		"no environment":              {none, "", nil, ""},
		"whole GPUs in other mode":    {devicesOf("u1", "gpu-0", "gpu-1", "gpu-2"), "", nil, ""},
		"beside another claim's GPUs": {devicesOf("u1", "gpus-0-1-2"), "", beside(nic, wholeGPUs("u2", 3)), ""},
		"beside what brings no GPUs": {devicesOf("u1", "gpus-0-1-2"), "", beside(nic, unallocated),
			"CUDA_VISIBLE_DEVICES=GPU-0,GPU-2,GPU-1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := chained(t)
			n.api.claims = tc.beside
			pod := podOf(tc.claim, "")
			pod.Spec.Containers = []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: tc.env, Value: "0"}}}}
			for _, c := range append(tc.beside, tc.claim) {
				pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims,
					corev1.PodResourceClaim{Name: c.Name, ResourceClaimName: &c.Name})
				pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims,
					corev1.ResourceClaim{Name: c.Name})
			}
			n.api.pods = []*corev1.Pod{pod}
			if name == "whole GPUs in other mode" {
				n.published = mode.Exclusive
			}
			got := n.takes(t, tc.claim)
			want := []string{"NVIDIA_VISIBLE_DEVICES=void"}
			if tc.want != "" {
				want = append(want, tc.want)
			}
			for _, d := range got {
				env := slices.DeleteFunc(n.env(t, d.CDIDeviceIDs[0]),
					func(v string) bool { return strings.HasPrefix(v, v1alpha1.EnvUUID) })
				expect.Equal(t, want, env, "environment of %s", d.DeviceName)
			}
			if !slices.Equal(n.nodes(t, got[0].CDIDeviceIDs[0])[:1], []string{"/dev/GPU-0"}) {
				t.Error("the first GPU is missing")
			}
		})
	}
}
