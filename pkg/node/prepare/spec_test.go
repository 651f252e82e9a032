// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/utils/ptr"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metafile"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
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
	var paths []string
	for _, d := range n.edits(t, id).DeviceNodes {
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
	expect.Equal(t, got, n.takes(t, c), "devices of the second Prepare")
	// Its GPUs are taken, every one.
	n.refuses(t, devicesOf("u2", "gpu-2-topology"), "held as a whole by claim team/claim-u1")
	// A new process has the same, though nobody tells it of the pod again.
	n.restart(t)
	n.api.err = errors.New("asked again")
	expect.NoError(t, n.Recover(t.Context()))
	expect.Equal(t, wantEnv, n.env(t, id), "environment after a restart")
	n.givesBack(t, "u1")
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
			n.api.Claims = tc.beside
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
			expect.Equal(t, "/dev/GPU-0", n.nodes(t, got[0].CDIDeviceIDs[0])[0], "the first GPU")
		})
	}
}

// injected is the environment of a container that has these CDI devices, as a runtime makes it.
func (n *node) injected(t *testing.T, ids ...string) []string {
	t.Helper()
	cache, err := upstream.NewCache(upstream.WithSpecDirs(n.cdiDir), upstream.WithAutoRefresh(false))
	expect.NoError(t, err)
	container := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	for _, id := range ids {
		cache.GetDevice(id).ContainerEdits.DeviceNodes = nil // they are looked for on the host
	}
	if missing, err := cache.InjectDevices(container, ids...); err != nil {
		t.Fatalf("%v: %v", missing, err)
	}
	return container.Process.Env
}

// A privileged container sees all GPUs of the node: its environment names those that are its own, whatever the number
// of requests and claims by which it has them. There is nothing else, so programs that see their own GPUs alone find
// what they found before.
func TestContainersAreToldWhichGPUsAreTheirOwn(t *testing.T) {
	n := newNode(t)
	n.published = mode.Exclusive
	two, other := devicesOf("u1", "gpu-3", "gpu-0"), devicesOf("u2", "gpu-2")
	two.Status.Allocation.Devices.Results[0].Request = "a"
	two.Status.Allocation.Devices.Results[1].Request = "b"
	first := n.takes(t, two)
	second := n.takes(t, other)
	a, b, c := first[0].CDIDeviceIDs[0], first[1].CDIDeviceIDs[0], second[0].CDIDeviceIDs[0]
	for name, test := range map[string]struct{ has, want []string }{
		"one request":            {[]string{a}, []string{"3=GPU-3"}},
		"the other":              {[]string{b}, []string{"0=GPU-0"}},
		"both":                   {[]string{a, b}, []string{"0=GPU-0", "3=GPU-3"}},
		"those of another claim": {[]string{a, c, b}, []string{"0=GPU-0", "2=GPU-2", "3=GPU-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			var own, rest []string
			for _, v := range n.injected(t, test.has...) {
				if gpu, is := strings.CutPrefix(v, v1alpha1.EnvUUID); is {
					own = append(own, gpu)
				} else {
					rest = append(rest, v)
				}
			}
			slices.Sort(own)
			expect.Equal(t, test.want, own, "its GPUs")
			expect.Equal(t, []string{"COMMON=1", "NVIDIA_VISIBLE_DEVICES=void"}, rest, "besides")
		})
	}
}

// The files by which containers learn what they have come with the CDI spec that mounts
// them, are put up again if somebody removes them, and go with it.
func TestMetadataComesAndGoesWithTheSpec(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	n.options.Metadata = metafile.Dir(dir)
	n.takes(t, sharesOf("u1", 2, 1, 7))
	files := []string{filepath.Join(dir, "u1", "r0.json"), filepath.Join(dir, "u1", "r1.json")}
	all := func(when string) {
		t.Helper()
		for _, file := range files {
			_, err := os.Stat(file)
			expect.NoErrorf(t, err, "%s", when)
		}
	}
	all("prepared")
	spec, err := os.ReadFile(filepath.Join(n.cdiDir, cdi.SpecName("u1")+".json"))
	expect.NoError(t, err)
	for _, file := range files {
		expect.Equal(t, 1, strings.Count(string(spec), `"hostPath":"`+file+`"`), "times it mounts %s: %s", file, spec)
	}
	expect.NoError(t, os.Remove(files[1]))
	n.takes(t, sharesOf("u1", 2, 1, 7))
	all("prepared again")
	expect.NoError(t, os.RemoveAll(filepath.Join(dir, "u1")))
	expect.NoError(t, n.repairer().Repair(t.Context()))
	all("repaired")
	n.givesBack(t, "u1")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Whoever writes claims can write anything into their annotations, of any length.
func TestNameOfAClaimInItsPod(t *testing.T) {
	n := newNode(t)
	for annotation, want := range map[string]string{
		"gpu": "gpu", "": "", "../../etc": "", strings.Repeat("x", 250_000): "", "a.b": "",
	} {
		c := sharesOf("u1", 1)
		c.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: annotation}
		expect.Equal(t, want, n.Preparer.recordOf(c, "", nil).PodClaimName, "of %.20q", annotation)
	}
}

// After a boot without GPU 1 the GPU that was GPU 2 is GPU 1. The claim that has it keeps it, its containers and users
// are told its index of now, and its record stays as it was.
func TestClaimOfAGPUWithAnotherIndex(t *testing.T) {
	n := newNode(t)
	c := reservedFor(sharesOf("u1", 2, 3), "p0")
	devices := n.takes(t, c)
	record := filepath.Join(n.stateDir, "u1.json")
	before, err := os.ReadFile(record)
	expect.NoError(t, err)
	dir := t.TempDir()
	shifted := machine()
	shifted.GPUs = []gpu.GPU{shifted.GPUs[0], shifted.GPUs[2]}
	shifted.GPUs[1].Index = 1
	n.restart(t)
	n.options.Metadata = metafile.Dir(dir)
	n.SetInventory(&Inventory{Machine: shifted,
		Base: fakeBase{of: shifted, missing: map[string]error{"GPU-2": errors.New("no /dev/nvidia1")}}})
	expect.NoError(t, n.Recover(t.Context()))
	if env := n.env(t, devices[0].CDIDeviceIDs[0]); !slices.Contains(env, "ALIYUN_COM_GPU_MEM_IDX=1") {
		t.Errorf("environment %v, want index 1", env)
	}
	content, err := os.ReadFile(filepath.Join(dir, "u1", "r0.json"))
	expect.NoError(t, err)
	var told metadatav1beta1.DeviceMetadata
	expect.NoError(t, json.Unmarshal(content, &told))
	index := told.Requests[0].Devices[0].Attributes["index"].IntValue
	expect.Equal(t, ptr.To[int64](1), index, "index told by %s", content)
	if err := n.Usable([]state.Record{n.recordOf(t, "u1")})[0]; err == nil || !strings.HasPrefix(err.Error(), "GPU 1: ") {
		t.Errorf("users are told %v, want it of GPU 1", err)
	}
	if after, err := os.ReadFile(record); err != nil || string(after) != string(before) {
		t.Errorf("record %s, %v; want it as it was: %s", after, err, before)
	}
}
