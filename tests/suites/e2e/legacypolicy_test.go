// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// What tests/policies shows of the policies' rules holds on a real API server.
func TestLegacyPodsAreConverted(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for name, test := range map[string]struct {
		pod      *corev1.Pod
		template string // empty where the pod is left as it is
		claims   string // "container:request" of those that have one, in the pod's order
	}{
		"nothing":                {harness.Asking(""), "", ""},
		"zero":                   {harness.Asking("mem 0 gpu 0"), "", ""},
		"a resource of NVIDIA's": {harness.Asking("nvidia.com/gpu 1"), "", ""},
		"memory":                 {harness.Asking("mem 3"), "gpushare.mem.c0.3", "c0:c0"},
		"memory among others":    {harness.Asking("cpu 1 mem 3 memory 1Gi"), "gpushare.mem.c0.3", "c0:c0"},
		"memory of one GPU":      {harness.Asking("mem 5 count 1"), "gpushare.mem.c0.5", "c0:c0"},
		"memory, cores zero":     {harness.Asking("mem 3 core 0"), "gpushare.mem.c0.3", "c0:c0"},
		"memory and compute":     {harness.Asking("mem 10 core 30"), "gpushare.core.c0.10-30", "c0:c0"},
		"cards":                  {harness.Asking("gpu 2"), "gpushare.gpu.c0.2", "c0:c0"},
		"three containers":       {harness.Asking("mem 1", "cpu 1", "mem 7"), "gpushare.mem.c0.1.c2.7", "c0:c0 c2:c2"},
		"GPUs of two":            {harness.Asking("gpu 1", "gpu 3"), "gpushare.gpu.c0.1.c1.3", "c0:c0 c1:c1"},
		"four GPUs": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "4"), "gpushare.mem-x4.c0.8",
			"c0:c0"},
		"two GPUs of two": {
			harness.WithInit(harness.Labelled(harness.Asking("mem 8", "", "mem 4"), ack.PodLabelCount, "2"),
				harness.Limited("i", "mem 1")), "gpushare.mem-x2.c0.8.c2.4", "c0:c0-card0 c0:c0-card1 c2:c2-card0 c2:c2-card1 " +
				"i:c0-card0 i:c0-card1"},
		"one GPU": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "1"), "gpushare.mem.c0.8",
			"c0:c0"},
		"no GPU": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "0"), "gpushare.mem.c0.8",
			"c0:c0"},
		"compute of two GPUs": {harness.Labelled(harness.Asking("mem 8 core 50"), ack.PodLabelCount, "2"),
			"gpushare.core-x2.c0.8-50", "c0:c0"},
		"more of two GPUs": {harness.Labelled(harness.Asking("mem 8 core 110"), ack.PodLabelCount, "2"),
			"gpushare.core-x2.c0.8-110", "c0:c0"},
		"whole GPU": {harness.Labelled(harness.Asking("mem 15"), ack.PodLabelPlacement, ack.RequireWholeDevice),
			"gpushare.mem-whole.c0.15", "c0:c0"},
		"labels beside GPUs": {harness.Labelled(harness.Asking("gpu 3"), ack.PodLabelCount, "x"), "gpushare.gpu.c0.3",
			"c0:c0"},
		"requests as well": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = p.Spec.Containers[0].Resources.Limits.DeepCopy()
		}), "gpushare.mem.c0.3", "c0:c0"},
		"init container": {harness.WithInit(harness.Asking("", "mem 3"), harness.Limited("i", "mem 2")), "gpushare.mem.c1.3",
			"c1:c1 i:c1"},
		"sidecar": {harness.WithInit(harness.Asking("mem 3"), harness.Limited("i", ""),
			harness.Sidecar(harness.Limited("s", "mem 1"))), "gpushare.mem.c0.3.s.1", "c0:c0 s:s"},
		"sidecar alone": {harness.WithInit(harness.Asking(""), harness.Sidecar(harness.Limited("s", "mem 1")),
			harness.Limited("i", "mem 10G")), "gpushare.mem.s.1", "s:s i:s"},
		"generateName": {harness.Changed(harness.Asking("mem 3"),
			func(p *corev1.Pod) { p.Name, p.GenerateName = "", "p-" }), "gpushare.mem.c0.3", "c0:c0"},
		"host IPC": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) { p.Spec.HostIPC = true }),
			"gpushare.mem.c0.3", "c0:c0"},
		"has annotations": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			p.Annotations = map[string]string{"a": "b"}
		}), "gpushare.mem.c0.3", "c0:c0"},
		"16 containers": {harness.Asking(strings.Split(strings.Repeat("mem 1,", 16)+"cpu 1", ",")...), "gpushare.mem" +
			numbered(16, ".c%d.1"), strings.TrimSpace(numbered(16, "c%[1]d:c%[1]d "))},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ns.Admitted(t.Context(), test.pod)
			if err != nil {
				t.Fatal(err)
			}
			isConverted(t, test.pod, got, test.template, test.claims)
			if test.template != "" {
				isLeftAlone(t, ns, got)
			}
		})
	}
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// isConverted checks that of a pod nothing is changed but what has to be.
func isConverted(t *testing.T, asked, got *corev1.Pod, template, claims string) {
	t.Helper()
	var names, uses []string
	for _, claim := range got.Spec.ResourceClaims {
		names = append(names, claim.Name+"="+ptr.Deref(claim.ResourceClaimTemplateName, ""))
	}
	want := ""
	if template != "" {
		want = "gpushare=" + template
	}
	if strings.Join(names, " ") != want {
		t.Errorf("claims %q, want %q", names, want)
	}
	for _, c := range append(append([]corev1.Container{}, got.Spec.Containers...), got.Spec.InitContainers...) {
		for _, claim := range c.Resources.Claims {
			uses = append(uses, c.Name+":"+claim.Request)
		}
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for name, amount := range list {
				if strings.HasPrefix(string(name), "aliyun.com/") && template != "" && !amount.IsZero() {
					t.Errorf("container %s still has %s", c.Name, name)
				}
			}
		}
	}
	if strings.Join(uses, " ") != claims {
		t.Errorf("requests of containers %q, want %q", uses, claims)
	}
	if got.Spec.HostIPC != asked.Spec.HostIPC || got.Annotations["a"] != asked.Annotations["a"] {
		t.Error("more was changed")
	}
	if template == "" {
		return
	}
	var recorded map[string]corev1.ResourceList
	if err := json.Unmarshal([]byte(got.Annotations[v1alpha1.AnnotationLegacyRequest]), &recorded); err != nil {
		t.Fatalf("annotation %q: %v", got.Annotations[v1alpha1.AnnotationLegacyRequest], err)
	}
	for _, c := range append(append([]corev1.Container{}, asked.Spec.Containers...), asked.Spec.InitContainers...) {
		for _, name := range []corev1.ResourceName{ack.ResourceMemory, ack.ResourceCores, ack.ResourceGPUs} {
			want, got := c.Resources.Limits[name], recorded[c.Name][name]
			if want.Cmp(got) != 0 {
				t.Errorf("the annotation says %s of %s's %s, want %s", got.String(), c.Name, name, want.String())
			}
		}
	}
}

// isLeftAlone has a converted pod made once more.
func isLeftAlone(t *testing.T, ns *harness.Namespace, pod *corev1.Pod) {
	t.Helper()
	again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, GenerateName: pod.GenerateName, Labels: pod.Labels,
		Annotations: pod.Annotations}, Spec: pod.Spec}
	got, err := ns.Admitted(t.Context(), again)
	if err != nil {
		t.Fatalf("the converted pod is refused: %v", err)
	}
	if diff := cmp.Diff(pod.Spec, got.Spec); diff != "" {
		t.Errorf("the second time it is changed (-first +second):\n%s", diff)
	}
}

// What there was before stays beside what comes.
func TestLegacyPodsKeepTheirClaims(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	pod := harness.Asking("cpu 1 mem 3", "")
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "net", ResourceClaimName: ptr.To("nic")}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: "net"}}
	}
	got, err := ns.Admitted(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	want := append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "gpushare", ResourceClaimTemplateName: ptr.To(
		"gpushare.mem.c0.3")})
	if diff := cmp.Diff(want, got.Spec.ResourceClaims); diff != "" {
		t.Errorf("the pod's claims (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.ResourceClaim{{Name: "net"}, {Name: "gpushare", Request: "c0"}},
		got.Spec.Containers[0].Resources.Claims); diff != "" {
		t.Errorf("the container's claims (-want +got):\n%s", diff)
	}
}

func TestSchedulerOfACK(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for name, want := range map[string]string{"ack-co-scheduler": "default-scheduler",
		"default-scheduler": "default-scheduler", "another": "another"} {
		for _, limits := range []string{"mem 3", "cpu 1"} {
			got, err := ns.Admitted(t.Context(), harness.Changed(harness.Asking(limits), func(p *corev1.Pod) {
				p.Spec.SchedulerName = name
			}))
			if err != nil || got.Spec.SchedulerName != want {
				t.Errorf("scheduler %s of a pod with %s became %s (%v), want %s", name, limits, got.Spec.SchedulerName, err, want)
			}
		}
	}
}

func TestLegacyPodsThatAreRefused(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		refused string
	}{
		"bytes": {harness.Asking("mem 10G"), "aliyun.com/gpu-mem 10G of container c0 is not a plain whole " +
			"number of GiB"},
		"Gi": {harness.Asking("mem 10Gi"), "aliyun.com/gpu-mem 10Gi of container c0 is not a plain"},
		"thousands": {harness.Asking("mem 2000"), "aliyun.com/gpu-mem 2000 of container c0 is 2000 GiB of " +
			"each GPU, and can be from 1 to 999"},
		"half":     {harness.Asking("mem 0.5"), "must be an integer"},
		"negative": {harness.Asking("mem -3"), "must be greater than or equal to 0"},
		"seven percent": {harness.Asking("mem 3 core 7"), "aliyun.com/gpu-core.percentage must be a multiple of " +
			"5, from 5 to 100"},
		"105 percent": {harness.Asking("mem 3 core 105"), "aliyun.com/gpu-core.percentage must be a multiple of " +
			"5, from 5 to 100"},
		"compute alone": {harness.Asking("core 20"), "reqeust resources must include aliyun.com/gpu-mem"},
		"different resources": {harness.Asking("mem 3", "mem 3 core 20"), "The requested gpu resource types should be " +
			"consistent for all containers"},
		"memory and GPUs": {harness.Asking("mem 3", "gpu 1"), "The requested gpu resource types should be " +
			"consistent for all containers"},
		"a number of GPUs": {harness.Asking("count 1"), "asks for aliyun.com/gpu-count, which gives it no GPU: ask " +
			"for aliyun.com/gpu-mem"},
		"memory and a number": {harness.Asking("mem 3 count 2"), "asks for aliyun.com/gpu-count, which gives it no GPU"},
		"a number, in init": {harness.WithInit(harness.Asking("mem 3"), harness.Limited("i", "count 1")),
			"asks for aliyun.com/gpu-count, which gives it no GPU"},
		"a number, opted out": {harness.Labelled(harness.Asking("count 1"), v1alpha1.LabelLegacy, "false"),
			"asks for aliyun.com/gpu-count and was not given a claim instead: it opted out by its label"},
		"a count that is none": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "x"), `failed to parse ` +
			`request device count from pod label aliyun.com/gpu-count,reason: strconv.Atoi: parsing "x": invalid syntax`},
		"too large a count": {harness.Labelled(harness.Asking("mem 66"), ack.PodLabelCount, "33"),
			"a claim is for 32 GPUs at most"},
		"negative count": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "-1"),
			`"-1": a valid label must be`},
		"seven percent each": {harness.Labelled(harness.Asking("mem 8 core 14"), ack.PodLabelCount, "2"),
			"aliyun.com/gpu-core.percentage must be a multiple of 5, from 5 to 100 on each GPU"},
		"seven over two": {harness.Labelled(harness.Asking("mem 7"), ack.PodLabelCount, "2"), "invalid replica for " +
			"resource aliyun.com/gpu-mem,because 7 / 2 = 3.5"},
		"ten percent over four": {harness.Labelled(harness.Asking("mem 8 core 10"), ack.PodLabelCount, "4"),
			"invalid replica for resource aliyun.com/gpu-core.percentage,because 10 / 4 = 2.5"},
		"51 shares": {harness.Labelled(harness.Asking("mem 17", "mem 17", "mem 17"), ack.PodLabelCount, "17"),
			"32 GPUs or shares at most"},
		"seventeen GPUs": {harness.Asking("gpu 17"), "more GPUs than the scheduler can look for while all pods wait"},
		"another placement": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelPlacement, "no"), "Invalid value " +
			"of pod label ack.gpushare.placement:only support [require-whole-device]"},
		"only init containers": {harness.WithInit(harness.Asking(""), harness.Limited("i", "mem 3")),
			"only init containers ask for a GPU"},
		"33 GPUs": {harness.Asking("gpu 33"), "aliyun.com/gpu 33 of container c0 is not a plain whole " +
			"number of GPUs, from 1 to 32"},
		"33 GPUs of two": {harness.Asking("gpu 16", "gpu 17"), "a pod can be given 32 GPUs or shares at most"},
		"claim's name taken": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpushare", ResourceClaimName: ptr.To("x")}}
		}), `the pod has an entry "gpushare"`},
		"opted out": {harness.Labelled(harness.Asking("mem 3"), v1alpha1.LabelLegacy, "false"),
			"it opted out by its label gpu.aliyun.com/legacy=false. It would run without a GPU"},
		"opted out, asks wrongly": {harness.Labelled(harness.Asking("gpu 50"), v1alpha1.LabelLegacy, "false"),
			"asks for aliyun.com/gpu and was not given a claim instead: it opted out by its label"},
		"requests only": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			r := &p.Spec.Containers[0].Resources
			r.Requests, r.Limits = r.Limits, nil
		}), "Limit must be set for non overcommitable resources"},
		"other requests": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{ack.ResourceMemory: resource.MustParse("2")}
		}), "must be equal to aliyun.com/gpu-mem limit of 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ns.Admitted(t.Context(), test.pod)
			harness.CheckRefusal(t, "pod", test.refused, err)
		})
	}
}

func TestNamespacesThatAreLeftAlone(t *testing.T) {
	t.Parallel()
	optedOut := cluster.Namespace(t, func(n *corev1.Namespace) {
		n.Labels = map[string]string{
			v1alpha1.LabelLegacy: "false"}
	})
	_, err := optedOut.Admitted(t.Context(), harness.Asking("mem 3"))
	harness.CheckRefusal(t, "pod", "its namespace opted out by the label gpu.aliyun.com/legacy=false. It would run "+
		"without a GPU", err)
	_, err = optedOut.Admitted(t.Context(), harness.Asking("cpu 1"))
	harness.CheckRefusal(t, "pod", "", err)
	_, err = cluster.Client.CoreV1().Pods("kube-system").Create(t.Context(), harness.Asking("mem 3"),
		metav1.CreateOptions{DryRun: harness.DryRun})
	harness.CheckRefusal(t, "pod", "pods of this namespace are left alone. It would run without a GPU", err)
}
