// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

const (
	mem       = "aliyun.com/gpu-mem"
	core      = "aliyun.com/gpu-core.percentage"
	linked    = "aliyun.com/gpu"
	nvidia    = "nvidia.com/gpu"
	v2        = "scheduler.framework.gpushare.allocation"
	v2Cores   = "gpushare.alibabacloud.com/core-percentage"
	v1        = "ALIYUN_COM_GPU_MEM_IDX"
	wholes    = "gputopology.alibabacloud.com/allocation"
	wholesOld = "topology.kubernetes.io/gpu-group"
)

// fourGPUs have 15 units each.
func fourGPUs() []gpu.GPU {
	var gpus []gpu.GPU
	for i := range 4 {
		gpus = append(gpus, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), MemoryMiB: 16130})
	}
	return gpus
}

// container has limits, alternately a resource and its amount.
func container(name string, limits ...string) corev1.Container {
	c := corev1.Container{Name: name}
	for i := 0; i < len(limits); i += 2 {
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	return c
}

// pod runs on a node; annotations are alternately a key and its value.
func pod(name string, containers []corev1.Container, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: containers},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for i := 0; i < len(annotations); i += 2 {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, annotations[i], annotations[i+1])
	}
	return p
}

// share asks for 3 GiB of a GPU, whole for so many GPUs.
func share(annotations ...string) *corev1.Pod {
	return pod("p", containers(container("c0", mem, "3")), annotations...)
}

func whole(count string) *corev1.Pod { return pod("p", containers(container("c0", nvidia, count))) }

func containers(c ...corev1.Container) []corev1.Container { return c }

// amounts writes what a pod holds: "GPU:units/cores/shares", with "whole" for whole
// GPUs, and "?" for what is not known.
func amounts(p held.Pod) string {
	var out []string
	write := func(g string, a held.Taken) {
		if a.Whole {
			out = append(out, g+":whole")
		} else {
			out = append(out, fmt.Sprintf("%s:%d/%d/%d", g, a.Units, a.Cores, a.Shares))
		}
	}
	for _, s := range p.Shares {
		write(fmt.Sprint(s.GPU), s.Taken)
	}
	for _, u := range p.Unknown {
		write("?", u.Taken)
	}
	return strings.Join(out, " ")
}

func gave(devices ...string) Kubelet {
	return Kubelet{Containers: map[Container]Devices{
		{"ns", "p", "c0"}: {Resources: []corev1.ResourceName{nvidia}, IDs: devices}}}
}

// lists is the answer of a kubelet that gave container c0 devices of these resources.
func lists(resources ...corev1.ResourceName) Kubelet {
	return Kubelet{Containers: map[Container]Devices{{"ns", "p", "c0"}: {Resources: resources}}}
}

func TestWhatAPodHolds(t *testing.T) {
	served := whole("1")
	served.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "c0", ResourceName: nvidia, RequestName: "r"}},
	}
	ended, failed, waiting := share(v1, "0"), share(v1, "0"), share()
	ended.Status.Phase, failed.Status.Phase, waiting.Spec.NodeName = corev1.PodSucceeded, corev1.PodFailed, ""
	initOnly := pod("p", containers(container("c0")))
	initOnly.Spec.InitContainers = containers(container("i", mem, "3"))
	initNative := whole("1")
	initNative.Spec.InitContainers = containers(container("i", nvidia, "1"))
	initMore := whole("1")
	initMore.Spec.InitContainers = containers(container("i", nvidia, "2"))
	sidecar := pod("p", containers(container("other")))
	sidecar.Spec.InitContainers = containers(container("c0", nvidia, "1"))
	sidecar.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	two := containers(container("c0", mem, "1"), container("c1", mem, "7"))
	both := containers(container("c0", mem, "6", core, "20"))
	pair := containers(container("c0", linked, "2"))

	for name, test := range map[string]struct {
		pod     *corev1.Pod
		kubelet Kubelet
		want    string // empty: it holds nothing
		reason  string // of what is not known
	}{
		"no limit":                    {pod: pod("p", containers(container("c0", "cpu", "1")))},
		"converted, but annotated":    {pod: pod("p", containers(container("c0")), v2, `{"0":{"0":3}}`)},
		"not bound":                   {pod: waiting},
		"ended":                       {pod: ended},
		"failed":                      {pod: failed},
		"only an init container asks": {pod: initOnly},
		"memory, second version":      {pod: pod("p", two, v2, `{"0":{"1":1},"1":{"1":7}}`), want: "1:8/0/2"},
		"the second version wins":     {pod: pod("p", two, v2, `{"0":{"1":1},"1":{"1":7}}`, v1, "0"), want: "1:8/0/2"},
		"memory, first version":       {pod: pod("p", two, v1, "3"), want: "3:8/0/2"},
		"memory on four GPUs": {pod: pod("p", containers(container("c0", mem, "8")), v2,
			`{"0":{"0":2,"1":2,"2":2,"3":2}}`), want: "0:2/0/1 1:2/0/1 2:2/0/1 3:2/0/1"},
		"a container without": {pod: pod("p", containers(container("x"), container("c", mem, "3")), v2,
			`{"1":{"0":3}}`), want: "0:3/0/1"},
		"zeros in the annotation":    {pod: share(v2, `{"0":{"0":3,"1":0}}`), want: "0:3/0/1"},
		"memory and compute":         {pod: pod("p", both, v2, `{"0":{"0":6}}`, v2Cores, `{"0":{"0":20}}`), want: "0:6/20/1"},
		"compute without annotation": {pod: pod("p", both, v1, "2"), want: "2:6/20/1"},
		"compute, on one of two GPUs": {pod: pod("p", both, v2, `{"0":{"0":3,"1":3}}`), want: "?:6/20/1",
			reason: "no annotation gpushare.alibabacloud.com/core-percentage"},
		"compute alone": {pod: pod("p", containers(container("c0", core, "20")), v2Cores, `{"0":{"0":20}}`),
			want: "0:0/20/1"},

		"no annotation":           {pod: pod("p", two), want: "?:8/0/2", reason: "neither of the annotations"},
		"no JSON":                 {pod: pod("p", two, v2, `{"0"`), want: "?:8/0/2", reason: "cannot be read"},
		"not falling back":        {pod: pod("p", two, v2, `{"0"`, v1, "0"), want: "?:8/0/2", reason: "cannot be read"},
		"a GPU too many":          {pod: share(v2, `{"0":{"4":3}}`), want: "?:3/0/1", reason: "no GPU 4"},
		"a container too many":    {pod: share(v2, `{"1":{"0":3}}`), want: "?:3/0/1", reason: `names container "1"`},
		"less than the limit":     {pod: share(v2, `{"0":{"0":2}}`), want: "?:3/0/1", reason: "limits are [3]"},
		"more than the limit":     {pod: share(v2, `{"0":{"0":4}}`), want: "?:3/0/1", reason: "its limit is 3"},
		"less than nothing":       {pod: share(v2, `{"0":{"0":-1}}`), want: "?:3/0/1", reason: "its limit is 3"},
		"an odd index":            {pod: share(v2, `{"0":{"+1":3}}`), want: "?:3/0/1", reason: `"+1" is not an index`},
		"an empty annotation":     {pod: share(v2, ``), want: "?:3/0/1", reason: "cannot be read"},
		"the plugin found no GPU": {pod: share(v1, "-1"), want: "?:3/0/1", reason: "not an index"},

		"linked GPUs": {
			pod:  pod("p", pair, wholes, `{"allocatedGPUs":{"0":["0","3"]},"visibleGPUs":["0","3"],"assigned":true}`),
			want: "0:whole 3:whole"},
		"linked GPUs, older":   {pod: pod("p", pair, wholesOld, "1,2"), want: "1:whole 2:whole"},
		"linked GPUs, unknown": {pod: pod("p", pair), want: "?:whole", reason: "neither of the annotations"},
		"a linked GPU twice":   {pod: pod("p", pair, wholesOld, "1,1"), want: "?:whole", reason: "twice"},
		"linked GPUs, too few": {pod: pod("p", pair, wholes, `{"allocatedGPUs":{"0":["0"]}}`), want: "?:whole",
			reason: "its limit is 2"},
		"linked GPUs, no JSON":    {pod: pod("p", pair, wholes, `0,1`), want: "?:whole", reason: "cannot be read"},
		"linked GPUs, none there": {pod: pod("p", pair, wholesOld, "8,9"), want: "?:whole", reason: "no GPU 8"},

		"a GPU of NVIDIA's plugin":    {pod: whole("1"), kubelet: gave("GPU-2"), want: "2:whole"},
		"two GPUs of NVIDIA's plugin": {pod: whole("2"), kubelet: gave("GPU-3", "GPU-1"), want: "1:whole 3:whole"},
		"replicas of a GPU":           {pod: whole("2"), kubelet: gave("GPU-2::0", "GPU-2::4"), want: "2:whole"},
		"replicas under their own name": {pod: pod("p", containers(container("c0", "nvidia.com/gpu.shared", "1"))),
			kubelet: gave("GPU-2::0"), want: "2:whole"},
		"a MIG device": {pod: whole("1"), kubelet: gave("MIG-2"), want: "2:whole"},
		"a MIG device by its profile": {pod: pod("p", containers(container("c0", "nvidia.com/mig-1g.10gb", "1"))),
			kubelet: gave("MIG-2"), want: "2:whole"},
		"a MIG device that is gone": {pod: whole("1"), kubelet: gave("MIG-7"), want: ""},
		"served by a claim":         {pod: served},
		"the kubelet does not answer": {pod: whole("1"),
			kubelet: Kubelet{Err: errors.New("no socket")}, want: "?:whole", reason: "no socket"},
		"the kubelet does not know yet": {pod: whole("1"), want: "?:whole",
			reason: "the kubelet does not list container c0"},
		"a device that is no GPU":        {pod: whole("1"), kubelet: gave("0"), want: "?:whole", reason: `device "0"`},
		"a sidecar with a GPU":           {pod: sidecar, kubelet: gave("GPU-1"), want: "1:whole"},
		"an init container's GPU":        {pod: initNative, kubelet: gave("GPU-1"), want: "1:whole"},
		"an init container's second GPU": {pod: initMore, kubelet: gave("GPU-1"), want: "?:whole", reason: "init container"},
		"memory known, GPUs not": {
			pod: pod("p", containers(container("c0", mem, "3"), container("c1", nvidia, "1")), v1, "0"), want: "0:3/0/1 ?:whole",
			reason: "the kubelet does not list container c1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, p := range []*corev1.Pod{test.pod, Trim(test.pod)} {
				got, _ := Read(p, Node{GPUs: fourGPUs(), Instances: map[string]int{"MIG-2": 2}, Kubelet: test.kubelet})
				expect.Equal(t, test.want, amounts(got), "it holds; unknown are %+v", got.Unknown)
				var reasons []string
				for _, u := range got.Unknown {
					reasons = append(reasons, u.Reason)
				}
				if (test.reason == "") != (len(reasons) == 0) || !strings.Contains(strings.Join(reasons, "; "), test.reason) {
					t.Errorf("not known: %q, want %q", reasons, test.reason)
				}
			}
		})
	}
}

func TestWhatIsTakenOfEachGPU(t *testing.T) {
	pods := []*corev1.Pod{
		pod("b", containers(container("c0", mem, "3")), v1, "1"),
		pod("a", containers(container("c0", mem, "5")), v2, `{"0":{"1":5}}`),
		pod("lost", containers(container("c0", mem, "2"))),
		pod("none", containers(container("c0"))),
		pod("whole", containers(container("c0", linked, "1")), wholesOld, "2"),
	}
	got := Of(pods, Node{GPUs: fourGPUs()})
	for i, want := range []held.GPU{
		{Taken: held.Taken{Amount: gpu.Amount{Units: 2, Shares: 1}}, MemoryOnly: true, Pods: []string{"ns/lost"}},
		{Taken: held.Taken{Amount: gpu.Amount{Units: 10, Shares: 3}}, MemoryOnly: true,
			Pods: []string{"ns/a", "ns/b", "ns/lost"}},
		{Taken: held.Taken{Amount: gpu.Amount{Units: 2, Shares: 2}, Whole: true}, MemoryOnly: true,
			Pods: []string{"ns/lost", "ns/whole"}},
		{Taken: held.Taken{Amount: gpu.Amount{Units: 2, Shares: 1}}, MemoryOnly: true, Pods: []string{"ns/lost"}},
	} {
		expect.Equal(t, want, got.GPU(fmt.Sprintf("GPU-%d", i)), "GPU %d", i)
	}
	var names []string
	for _, p := range got.Pods {
		names = append(names, p.Name)
	}
	expect.Equal(t, []string{"a", "b", "lost", "whole"}, names, "pods")
}

// Whatever an annotation says, a pod counts: with just its limits on GPUs that there
// are, or with all of them on every GPU.
func FuzzAnnotations(f *testing.F) {
	for _, text := range []string{
		`{"0":{"1":1},"1":{"1":7}}`, `{"0":{"0":1},"1":{"0":3,"1":4}}`, `{"allocatedGPUs":{"0":["0"],"1":["1"]}}`, "0,1", "1",
		"-1", "{}", "null", "", `{"0":null}`,
		`{"0":{"1":1},"1":{"1":7,"1":7}}`, `{"00":{"1":1}}`, `{"0":{"0":9223372036854775807,"1":1}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, key := range []string{v2, v1} {
			got, ok := Read(pod("p", containers(container("c0", mem, "1"), container("c1", mem, "7")), key, text),
				Node{GPUs: fourGPUs()})
			total := int64(0)
			for _, s := range got.Shares {
				if s.GPU < 0 || s.GPU > 3 || s.Units < 1 {
					t.Errorf("%s=%q: share %+v", key, text, s)
				}
				total += s.Units
			}
			for _, u := range got.Unknown {
				total += u.Units
			}
			if !ok || total != 8 {
				t.Errorf("%s=%q: %d units count, want 8", key, text, total)
			}
		}
		for _, key := range []string{wholes, wholesOld} {
			got, ok := Read(pod("p", containers(container("c0", linked, "1"), container("c1", linked, "1")), key, text),
				Node{GPUs: fourGPUs()})
			if !ok || len(got.Shares) != 2 && len(got.Unknown) != 1 {
				t.Errorf("%s=%q: %+v", key, text, got)
			}
		}
	})
}

func FuzzDevices(f *testing.F) {
	for _, id := range []string{"GPU-1", "GPU-1::3", "::", "", "MIG-1", "GPU-", "0"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		got, ok := Read(pod("p", containers(container("c0", nvidia, "1"))), Node{GPUs: fourGPUs(), Kubelet: gave(id)})
		if mig := strings.HasPrefix(id, "MIG-"); ok == mig || ok && len(got.Shares)+len(got.Unknown) != 1 {
			t.Errorf("device %q: %+v", id, got)
		}
	})
}
