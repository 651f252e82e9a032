// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// left is what a node publishes of a device of which so much memory and compute are
// left.
func left(published []*resourceapi.ResourceSlice, device string, gib, cores int64) []*resourceapi.ResourceSlice {
	for _, slice := range published {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			if d.Name != device {
				continue
			}
			setCapacity(d, v1alpha1.CapMemory, *resource.NewQuantity(gib*devices.GiB, resource.BinarySI))
			setCapacity(d, v1alpha1.CapCores, *resource.NewQuantity(cores, resource.DecimalSI))
		}
	}
	return published
}

func setCapacity(d *resourceapi.Device, name resourceapi.QualifiedName, value resource.Quantity) {
	if capacity, ok := d.Capacity[name]; ok {
		capacity.Value = value
		d.Capacity[name] = capacity
	}
}

// closed is what a node publishes of devices of which nothing is handed out.
func closed(published []*resourceapi.ResourceSlice, devices ...string) []*resourceapi.ResourceSlice {
	for _, slice := range published {
		for i := range slice.Spec.Devices {
			if d := &slice.Spec.Devices[i]; slices.Contains(devices, d.Name) {
				d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: v1alpha1.TaintHeld,
					Effect: resourceapi.DeviceTaintEffectNoSchedule})
			}
		}
	}
	return published
}

// oldPod is a pod, "namespace/name", that a device plugin started: its limits, as in
// "aliyun.com/gpu-mem 3", and its annotations as key, value, key, …
func oldPod(node, pod, limits string, annotations ...string) *corev1.Pod {
	namespace, name, _ := strings.Cut(pod, "/")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Annotations[annotations[i]] = annotations[i+1]
	}
	list := corev1.ResourceList{}
	fields := strings.Fields(limits)
	for i := 0; i+1 < len(fields); i += 2 {
		list[corev1.ResourceName(fields[i])] = resource.MustParse(fields[i+1])
	}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: list}}}
	return p
}

const (
	allocation = "scheduler.framework.gpushare.allocation"
	percent    = "gpushare.alibabacloud.com/core-percentage"
	firstIndex = "ALIYUN_COM_GPU_MEM_IDX"
	group      = "topology.kubernetes.io/gpu-group"
)

// beside is a node on which pods of ACK's device plugin run beside such with claims.
func beside() inspect.Input {
	converted := changed(claim("team-a/converted", "n1 gpu-0-share 3"), func(c *resourceapi.ResourceClaim) {
		c.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
	})
	return inspect.Input{
		Slices: left(left(left(publish("n1", mode.Share, v100, v100, v100), "gpu-0-share", 13, 100), "gpu-1-share", 9, 100),
			"gpu-2-share", 8, 100),
		Claims: []*resourceapi.ResourceClaim{converted, claim("team-a/own", "n1 gpu-1-share 2")},
		Pods: []*corev1.Pod{
			oldPod("n1", "team-b/v2", "aliyun.com/gpu-mem 4", allocation, `{"0":{"1":4}}`),
			oldPod("n1", "team-b/v1", "aliyun.com/gpu-mem 5", firstIndex, "2"),
			oldPod("n1", "team-b/lost", "aliyun.com/gpu-mem 2"),
			oldPod("n2", "team-b/elsewhere", "aliyun.com/gpu-mem 4", allocation, `{"0":{"1":4}}`),
			oldPod("n1", "team-b/none", "cpu 2"),
		},
		Nodes: []*corev1.Node{node("n1", "10.0.0.1")},
	}
}

func TestSummaryOfPodsWithoutClaims(t *testing.T) {
	// The dashes are as the known tool counts them for the row.
	want := `
NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)
n1    10.0.0.1   3/15                   6/15                   5/15                   2                   16/45
-------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
16/45 (35%)
`
	expect.Equal(t, want, "\n"+trimmed(summary(beside(), inspect.Style{})), "summary")
	notes := strings.Join(inspect.New(beside()).Notes, "\n")
	expect.Says(t, notes, "On node n1 pods hold GPUs without a claim", "team-b/lost (it has neither of the annotations")
}

func TestDetailsOfPodsWithoutClaims(t *testing.T) {
	want := `
NAME:       n1
IPADDRESS:  10.0.0.1

NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  GPU2(Allocated)  Pending(Allocated)
converted    team-a     3                0                0                0
own          team-a     0                2                0                0
v2           team-b     0                4                0                0
v1           team-b     0                0                5                0
lost         team-b     0                0                0                2
Allocated :  16 (35%)
Total :      45
`
	got, _, _ := strings.Cut(trimmed(details(beside(), inspect.Style{})), "----")
	expect.Equal(t, want, got, "details")
	origins := map[string]string{}
	for line := range strings.Lines(details(beside(), inspect.Style{Wide: true})) {
		if fields := strings.Fields(line); len(fields) == 7 && strings.HasPrefix(fields[1], "team-") {
			origins[fields[0]] = fields[6]
		}
	}
	expect.Equal(t, map[string]string{"converted": "limits", "own": "claim", "v2": "device-plugin",
		"v1": "device-plugin", "lost": "device-plugin"}, origins, "origins")
}

func TestPodsWithoutClaimsInEveryMode(t *testing.T) {
	for name, test := range map[string]struct {
		slices []*resourceapi.ResourceSlice
		pods   []*corev1.Pod
		want   []string
	}{
		"compute": {
			left(publish("n1", mode.CoreMem, v100), "gpu-0-core-mem", 12, 70),
			[]*corev1.Pod{oldPod("n1", "a/p", "aliyun.com/gpu-mem 3 aliyun.com/gpu-core.percentage 30", allocation,
				`{"0":{"0":3}}`, percent, `{"0":{"0":30}}`)},
			[]string{"3/15", "3/15", "30/100", "30/100"},
		},
		"linked GPUs": {
			closed(publish("n1", mode.Topology, newGPUs(4, "V100", 16130)...), "gpu-0-topology", "gpu-3-topology", "gpus-0-1",
				"gpus-2-3"),
			[]*corev1.Pod{oldPod("n1", "a/p", "aliyun.com/gpu 2", group, "0,3")},
			[]string{"15/15", "0/15", "0/15", "15/15", "30/60"},
		},
		"a GPU of NVIDIA's device plugin": {
			closed(publish("n1", mode.Exclusive, a10, t4), "gpu-1"),
			[]*corev1.Pod{oldPod("n1", "a/p", "nvidia.com/gpu 1")},
			// The one that takes no claims, of whichever size the largest is.
			[]string{"0/22", "0/15", "15", "15/37"},
		},
		"of GPUs of different sizes": {
			left(publish("n1", mode.Share, a10, t4), "gpu-1-share", 11, 100),
			[]*corev1.Pod{oldPod("n1", "a/p", "aliyun.com/gpu-mem 4", firstIndex, "1")},
			[]string{"0/22", "4/15", "4/37"},
		},
		"on a dynamic node": {
			closed(publish("n1", mode.Dynamic, v100, v100), "gpu-1", "gpu-1-share", "gpu-1-cgpu", "gpu-1-core-mem", "gpu-1-mps"),
			[]*corev1.Pod{oldPod("n1", "a/p", "aliyun.com/gpu-mem 4", firstIndex, "1")},
			[]string{"0/15", "4/15", "4/30"},
		},
		"ended": {
			publish("n1", mode.Share, v100),
			[]*corev1.Pod{func() *corev1.Pod {
				p := oldPod("n1", "a/p", "aliyun.com/gpu-mem 4", firstIndex, "0")
				p.Status.Phase = corev1.PodSucceeded
				return p
			}()},
			[]string{"0/15", "0/15"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := inspect.Input{Slices: test.slices, Pods: test.pods, Nodes: []*corev1.Node{node("n1", "10.0.0.1")}}
			expect.Equal(t, [][]string{test.want}, nodesOf(summary(in, inspect.Style{})), "nodes")
		})
	}
}

// Replicas of NVIDIA's device plugin share a GPU: together they hold no more than that.
func TestPodsThatShareAGPUByTime(t *testing.T) {
	in := inspect.Input{Slices: closed(publish("n1", mode.Exclusive, a10, t4), "gpu-0"),
		Pods: []*corev1.Pod{oldPod("n1", "a/mig", "nvidia.com/mig-1g.10gb 1")}}
	for i := range 10 {
		in.Pods = append(in.Pods, oldPod("n1", fmt.Sprintf("a/p%d", i), "nvidia.com/gpu.shared 3"))
	}
	table := inspect.New(in)
	n := table.Nodes[0]
	if n.MemoryGiB.String() != "22/37" || n.PendingGiB != 22 || table.MemoryGiB.String() != "22/37" {
		t.Errorf("allocated are %v, of them %d are pending, of the cluster %v", n.MemoryGiB, n.PendingGiB, table.MemoryGiB)
	}
	for _, h := range n.Holders {
		expect.Equal(t, map[bool]int64{false: 22}[h.Name() == "mig"], h.PendingGiB, "%s holds", h.Name())
	}
	notes := strings.Join(table.Notes, "\n")
	expect.Says(t, notes, "pods of a GPU that is shared by time count together as that GPU: a/p0 (", "and 7 more",
		"how much is not known here; it is not counted: a/mig (")
}

func TestPodsThatMayNotBeRead(t *testing.T) {
	in := beside()
	in.Slices = append(in.Slices, closed(publish("n2", mode.Exclusive, v100, v100), "gpu-1")...)
	in.Slices = append(in.Slices, left(publish("n3", mode.CoreMem, v100), "gpu-0-core-mem", 12, 70)...)
	in.Slices = append(in.Slices, closed(publish("n4", mode.Exclusive, v100), "gpu-0")...)
	in.Slices = append(in.Slices, closed(publish("n5", mode.Share, v100), "gpu-0-share")...)
	in.Claims = append(in.Claims, claim("team-a/whole", "n4 gpu-0"), claim("team-a/part", "n5 gpu-0-share 4"))
	in.Pods, in.PodsUnknown = nil, true
	// Of n1 more than there is: a pod of an unknown GPU is taken off each. What claims hold of a closed GPU, as of n4
	// and n5, is part of it.
	want := [][]string{
		{"5/15", "8/15", "7/15", "20/45", "0/0", "0/0", "0/0", "0/0"},
		{"0/15", "15/15", "0/0", "15/30", "0/0", "0/0", "0/0", "0/0"},
		{"3/15", "0/0", "0/0", "3/15", "30/100", "0/0", "0/0", "30/100"},
		{"15/15", "0/0", "0/0", "15/15", "0/0", "0/0", "0/0", "0/0"},
		{"15/15", "0/0", "0/0", "15/15", "0/0", "0/0", "0/0", "0/0"},
	}
	expect.Equal(t, want, nodesOf(summary(in, inspect.Style{})), "nodes")
}

func TestWhetherAnythingIsTaken(t *testing.T) {
	for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology,
		mode.Dynamic} {
		published := publish("n1", m, a10, t4, h200, h200)
		expect.Equal(t, "", inspect.WithoutClaimKey(published), "taken of free GPUs in mode %s", m)
	}
	some := inspect.WithoutClaimKey(left(publish("n1", mode.Share, v100), "gpu-0-share", 14, 100))
	more := inspect.WithoutClaimKey(left(publish("n1", mode.Share, v100), "gpu-0-share", 13, 100))
	compute := inspect.WithoutClaimKey(left(publish("n1", mode.CoreMem, v100), "gpu-0-core-mem", 15, 95))
	whole := inspect.WithoutClaimKey(closed(publish("n1", mode.Exclusive, v100), "gpu-0"))
	keys := []string{"", some, more, compute, whole}
	if slices.Sort(keys); len(slices.Compact(keys)) != 5 {
		t.Errorf("not all are different: %q", keys)
	}
}
