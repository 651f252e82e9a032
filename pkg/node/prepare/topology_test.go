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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2/ktesting"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"

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
	c := emptyClaim(uid)
	for _, name := range names {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{
				Request: "cards/linked", Driver: "gpu.aliyun.com", Pool: pool, Device: name,
			})
	}
	return c
}

// nodes are the device nodes that a CDI device brings.
func (n *node) nodes(t *testing.T, id string) []string {
	t.Helper()
	cache, err := upstream.NewCache(upstream.WithSpecDirs(n.cdiDir), upstream.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, d := range cache.GetDevice(id).ContainerEdits.DeviceNodes {
		paths = append(paths, d.Path)
	}
	return paths
}

func TestPrepareSet(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := chained(t)
	c := devicesOf("u1", "gpus-0-1-2-3")
	got, err := n.Prepare(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].DeviceName != "gpus-0-1-2-3" || len(got[0].CDIDeviceIDs) != 1 {
		t.Fatalf("devices %+v, want one for the one result", got)
	}
	id := got[0].CDIDeviceIDs[0]
	if diff := cmp.Diff([]string{"/dev/GPU-0", "/dev/GPU-1", "/dev/GPU-2", "/dev/GPU-3"}, n.nodes(t, id)); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	wantEnv := []string{"NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES=GPU-0,GPU-2,GPU-1,GPU-3",
		"GPU_ALIYUN_COM_UUID_0=GPU-0", "GPU_ALIYUN_COM_UUID_1=GPU-1", "GPU_ALIYUN_COM_UUID_2=GPU-2",
		"GPU_ALIYUN_COM_UUID_3=GPU-3"}
	if diff := cmp.Diff(wantEnv, n.env(t, id)); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	again, err := n.Prepare(ctx, c)
	if diff := cmp.Diff(got, again); diff != "" || err != nil {
		t.Errorf("second Prepare: %v, (-first +second):\n%s", err, diff)
	}
	// Its GPUs are taken, every one.
	if _, err := n.Prepare(ctx, devicesOf("u2", "gpu-2-topology")); err == nil ||
		!strings.Contains(err.Error(), "held as a whole by claim team/claim-u1") {
		t.Errorf("a GPU of the set: %v", err)
	}
	// A new process has the same, though nobody tells it of the pod again.
	n.restart(t)
	n.api.err = errors.New("asked again")
	if err := n.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantEnv, n.env(t, id)); diff != "" {
		t.Errorf("environment after a restart (-want +got):\n%s", diff)
	}
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Fatal(err)
	}
	if left := n.files(t); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPrepareSetWithALostGPU(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := chained(t)
	m := machine()
	m.GPUs = m.GPUs[:3]
	n.SetInventory(&Inventory{Machine: m, Base: fakeBase{}})
	if _, err := n.Prepare(ctx, devicesOf("u1", "gpus-2-3")); err == nil ||
		!strings.Contains(err.Error(), "GPU 3 is no longer usable") {
		t.Errorf("error %v", err)
	}
	if left := n.files(t); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOrderOfGPUs(t *testing.T) {
	beside := func(claims ...*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim { return claims }
	nic := emptyClaim("nic")
	unallocated := emptyClaim("none")
	unallocated.Status.Allocation = nil
	two := devicesOf("u1", "gpu-0-topology", "gpu-1-topology")
	two.Status.Allocation.Devices.Results[1].Request = "more"
	none := devicesOf("u1", "gpus-0-1-2")
	none.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: "gpu.aliyun.com", Parameters: runtime.RawExtension{Raw: []byte(
				`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","env":"None"}`)},
		}},
	}}
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
			_, ctx := ktesting.NewTestContext(t)
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
			got, err := n.Prepare(ctx, tc.claim)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"NVIDIA_VISIBLE_DEVICES=void"}
			if tc.want != "" {
				want = append(want, tc.want)
			}
			for _, d := range got {
				env := slices.DeleteFunc(n.env(t, d.CDIDeviceIDs[0]),
					func(v string) bool { return strings.HasPrefix(v, v1alpha1.EnvUUID) })
				if diff := cmp.Diff(want, env); diff != "" {
					t.Errorf("environment of %s (-want +got):\n%s", d.DeviceName, diff)
				}
			}
			if !slices.Equal(n.nodes(t, got[0].CDIDeviceIDs[0])[:1], []string{"/dev/GPU-0"}) {
				t.Error("the first GPU is missing")
			}
		})
	}
}
