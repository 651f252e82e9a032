// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

// podWith is the pod team-a/p with a claim by name, and one of a template; made reports whether
// that one has been made.
func podWith(made bool) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "p"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{
		{Name: "named", ResourceClaimName: ptr.To("c")}, {Name: "templated", ResourceClaimTemplateName: ptr.To("t")},
	}
	if made {
		pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "templated",
			ResourceClaimName: ptr.To("p-templated")}}
	}
	return pod
}

// The kubelet's last words of a pod that cannot start are read; those of one that runs are old.
func TestReadsWhyAPodIsNotPrepared(t *testing.T) {
	refused := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "e"},
		Reason: "FailedPrepareDynamicResources", Message: "decode GpuConfig:\nunknown field"}
	for phase, want := range map[corev1.PodPhase]string{
		corev1.PodPending: "decode GpuConfig: unknown field", corev1.PodRunning: ""} {
		pod := podWith(true)
		pod.Spec.NodeName, pod.Status.Phase = "n1", phase
		client := fake.NewClientset(append(objects(), pod, claim("team-a", "p-templated"), refused)...)
		in, err := cluster.Reader{Client: client, Namespace: "team-a"}.PodAndCluster(t.Context(), "p")
		expect.NoError(t, err)
		expect.Equal(t, want, in.NotPrepared, "of a pod that is %s", phase)
	}
}

func TestReadsPodAndItsClaims(t *testing.T) {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "t"}}
	refused := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "e"},
		Reason: "FailedResourceClaimCreation", Message: "exceeded quota: gpus"}
	deleted := claim("team-a", "p-templated")
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	deleted.Finalizers = []string{"resource.kubernetes.io/delete-protection"}
	runs := podWith(true)
	runs.Spec.NodeName = "n1"
	for name, test := range map[string]struct {
		objects   []runtime.Object
		forbidden []string
		claims    string
		missing   string
		notes     int
	}{
		"all there":      {[]runtime.Object{podWith(true), claim("team-a", "p-templated")}, nil, "c p-templated", "", 0},
		"one is gone":    {[]runtime.Object{podWith(true)}, nil, "c", "claim p-templated does not exist", 0},
		"one goes":       {[]runtime.Object{podWith(true), deleted}, nil, "c", "claim p-templated is being deleted", 0},
		"one goes later": {[]runtime.Object{runs, deleted}, nil, "c p-templated", "", 0},
		"no template":    {[]runtime.Object{podWith(false)}, nil, "c", "the ResourceClaimTemplate t does not exist", 0},
		"refused":        {[]runtime.Object{podWith(false), refused}, nil, "c", "t does not exist: exceeded quota: gpus", 0},
		"not made":       {[]runtime.Object{podWith(false), template}, nil, "c", "template t is not made yet", 0},
		"kept by quotas": {[]runtime.Object{podWith(false), template, refused}, nil, "c", "exceeded quota: gpus", 0},
		"with few rights": {[]runtime.Object{podWith(true), claim("team-a", "p-templated")}, []string{"list nodes",
			"list resourceclaims", "list resourceclaims team-a", "list devicetaintrules"}, "c p-templated", "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(objects(), test.objects...)...)
			forbid(client, test.forbidden...)
			in, err := cluster.Reader{Client: client, Namespace: "team-a"}.PodAndCluster(t.Context(), "p")
			expect.NoError(t, err)
			var claims []string
			for _, claim := range in.PodClaims {
				claims = append(claims, claim.Name)
			}
			expect.Equal(t, test.claims, strings.Join(claims, " "), "claims")
			expect.Says(t, strings.Join(in.Missing, "; "), test.missing)
			if len(in.Notes) != test.notes || in.OthersUnknown != (test.notes > 0) || len(in.Nodes) == 0 {
				t.Errorf("notes %q, others unknown: %v, nodes %v", in.Notes, in.OthersUnknown, in.Nodes)
			}
			expect.Equal(t, slices.Contains(test.forbidden, "list nodes"), in.NodesUnknown, "nodes unknown")
		})
	}
}

func TestReadsClaimAndWhoWaitsForIt(t *testing.T) {
	bound := podWith(true)
	bound.Name, bound.Spec.NodeName = "a", "n1"
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "z"}}
	client := fake.NewClientset(append(objects(), bound, podWith(true), other)...)
	in, err := cluster.Reader{Client: client, Namespace: "team-a"}.ClaimAndCluster(t.Context(), "c")
	if err != nil || in.Claim.Name != "c" || in.Pod == nil || in.Pod.Name != "p" {
		t.Errorf("got %+v, %v", in.Pod, err)
	}
}

// A pod that has ended neither uses a claim nor waits for it; of pods that may not be listed
// nothing is said.
func TestReadsClaimThatNoPodIsSeenToUse(t *testing.T) {
	succeeded, failed := podWith(true), podWith(true)
	succeeded.Status.Phase = corev1.PodSucceeded
	failed.Name, failed.Status.Phase = "q", corev1.PodFailed
	for _, forbidden := range []string{"", "list pods team-a"} {
		client := fake.NewClientset(append(objects(), succeeded, failed)...)
		if forbidden != "" {
			forbid(client, forbidden)
		}
		in, err := cluster.Reader{Client: client, Namespace: "team-a"}.ClaimAndCluster(t.Context(), "c")
		if err != nil || in.Pod != nil || in.PodsUnknown != (forbidden != "") {
			t.Errorf("forbidden %q: pod %v, pods unknown: %v, %v", forbidden, in.Pod, in.PodsUnknown, err)
		}
	}
}

// What a pod uses is read from the metrics of its node's plugin, through the API server.
func TestReadsWhatAPodUses(t *testing.T) {
	const metrics = `# TYPE gpushare_audit_findings gauge
gpushare_audit_findings{kind="no-grant"} 0
# TYPE gpushare_claim_memory_used_bytes gauge
gpushare_claim_memory_used_bytes{claim="c",container="a",gpu="2",namespace="team-a",pod="p",uuid="u"} 1.048576e+06
gpushare_claim_memory_used_bytes{claim="c",container="b",gpu="2",namespace="team-a",pod="p",uuid="u"} 2.097152e+06
gpushare_claim_memory_used_bytes{claim="c",container="b",gpu="2",namespace="team-b",pod="p",uuid="u"} 1e+09
gpushare_claim_memory_used_bytes{claim="c",container="a",gpu="2",namespace="team-a",pod="q",uuid="u"} 1.048576e+06
gpushare_claim_memory_used_bytes{claim="c",container="",gpu="2",namespace="team-a",pod="",uuid="u"} 1.048576e+06
gpushare_claim_memory_used_bytes{claim="c,p-templated",container="d",gpu="2",namespace="team-a",pod="p",uuid="u"} 512
# TYPE gpushare_claim_processes gauge
gpushare_claim_processes{claim="c",container="a",gpu="2",namespace="team-a",pod="p",uuid="u"} 3
`
	for name, test := range map[string]struct {
		forbidden string
		metrics   string
		note      string
	}{
		"all":            {"", metrics, ""},
		"no right":       {"list pods", metrics, "You may not read the metrics of the node's plugin"},
		"no audit":       {"", "# TYPE gpushare_build_info gauge\ngpushare_build_info 1\n", "does not look at who uses what"},
		"no such answer": {"", "<html>", "What is used is not known: parse the metrics of pod kube-system/plugin-n1"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podWith(true)
			pod.Spec.NodeName, pod.Status.Phase = "n1", corev1.PodRunning
			held := claim("team-a", "p-templated")
			held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.aliyun.com"}}}}
			client := fake.NewClientset(append(objects(), pod, pluginOn("n1"), held)...)
			forbid(client, test.forbidden)
			client.AddProxyReactor("pods", func(clienttesting.Action) (bool, rest.ResponseWrapper, error) {
				return true, answered(test.metrics), nil
			})
			in, err := cluster.Reader{Client: client, Namespace: "team-a"}.PodAndCluster(t.Context(), "p")
			expect.NoError(t, err)
			if test.note != "" {
				if len(in.Notes) != 1 || !strings.Contains(in.Notes[0], test.note) || in.Used != nil {
					t.Errorf("notes %q, used %v", in.Notes, in.Used)
				}
				return
			}
			both := why.ClaimGPU{Claim: "c,p-templated", GPU: 2}
			want := map[why.ClaimGPU]why.Use{{Claim: "c", GPU: 2}: {MemoryBytes: 3 << 20, Processes: 3},
				both: {MemoryBytes: 512}}
			if diff := expect.Diff(want, in.Used); diff != nil || len(in.Notes) > 0 {
				t.Errorf("used %v\nnotes %q", diff, in.Notes)
			}
			// Of a claim it is what all pods use.
			in, err = cluster.Reader{Client: client, Namespace: "team-a"}.ClaimAndCluster(t.Context(), "c")
			want[why.ClaimGPU{Claim: "c", GPU: 2}] = why.Use{MemoryBytes: 5 << 20, Processes: 3}
			if diff := expect.Diff(want, in.Used); diff != nil || err != nil {
				t.Errorf("used of the claim %v\n%v", diff, err)
			}
		})
	}
}

// A plugin that cannot read pods has no names of pods in its metrics: what is used is the pod's if it has a claim for
// itself, and of what others may use it is not known whose it is.
func TestReadsWhatAPodUsesWherePluginReadsNoPods(t *testing.T) {
	const series = `{claim="%s",container="",gpu="2",namespace="team-a",pod="%s",uuid="u"} `
	const gone = "gpushare_audit_findings{kind=\"gone-pod\"} 1\n"
	own, shared := why.ClaimGPU{Claim: "p-templated", GPU: 2}, why.ClaimGPU{Claim: "c", GPU: 2}
	both := why.ClaimGPU{Claim: "c,p-templated", GPU: 2}
	for name, test := range map[string]struct {
		findings string
		pods     map[string]string
		want     map[why.ClaimGPU]why.Use
	}{
		"it reads none": {"", map[string]string{"c": "", "p-templated": "", "c,p-templated": ""}, map[why.ClaimGPU]why.Use{
			own: {MemoryBytes: 512, Processes: 1}, both: {MemoryBytes: 512, Processes: 1}, shared: {Unknown: true}}},
		"it knows the pod": {"", map[string]string{"c": "", "p-templated": "", "c,p-templated": "p"},
			map[why.ClaimGPU]why.Use{both: {MemoryBytes: 512, Processes: 1}}},
		"of pods that are gone": {gone, map[string]string{"c": "", "p-templated": ""}, map[why.ClaimGPU]why.Use{}},
		"of another pod":        {"", map[string]string{"c": "q"}, map[why.ClaimGPU]why.Use{}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podWith(true)
			pod.Spec.NodeName, pod.Status.Phase = "n1", corev1.PodRunning
			claims := map[string]*resourceapi.ResourceClaim{"c": claim("team-a", "c"),
				"p-templated": claim("team-a", "p-templated")}
			for name, c := range claims {
				c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
					Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "gpu.aliyun.com"}}}}
				c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}}
				if name == "c" {
					c.Status.ReservedFor = append(c.Status.ReservedFor,
						resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "q"})
				}
			}
			memory := "# TYPE gpushare_claim_memory_used_bytes gauge\n"
			processes := "# TYPE gpushare_claim_processes gauge\n"
			for claim, pod := range test.pods {
				memory += fmt.Sprintf("gpushare_claim_memory_used_bytes"+series+"512\n", claim, pod)
				processes += fmt.Sprintf("gpushare_claim_processes"+series+"1\n", claim, pod)
			}
			client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, pod, pluginOn("n1"),
				claims["c"], claims["p-templated"])
			client.AddProxyReactor("pods", func(clienttesting.Action) (bool, rest.ResponseWrapper, error) {
				return true, answered("# TYPE gpushare_audit_findings gauge\ngpushare_audit_findings{kind=\"no-grant\"} 0\n" +
					test.findings + memory + processes), nil
			})
			in, err := cluster.Reader{Client: client, Namespace: "team-a"}.PodAndCluster(t.Context(), "p")
			if diff := expect.Diff(test.want, in.Used); diff != nil || err != nil || len(in.Notes) > 0 {
				t.Errorf("used %v\n%v, notes %q", diff, err, in.Notes)
			}
		})
	}
}

// answered is what a pod answers.
type answered string

func (a answered) DoRaw(context.Context) ([]byte, error) { return []byte(a), nil }
func (a answered) Stream(context.Context) (io.ReadCloser, error) {
	return nil, errors.New("not a stream")
}

// Rules of administrators close devices as taints of the driver do.
func TestReadsTaintsOfRules(t *testing.T) {
	rule := func(name, device string) *resourceapi.DeviceTaintRule {
		return &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Device: &device},
			Taint:          resourceapi.DeviceTaint{Key: name, Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	}
	client := fake.NewClientset(append(objects(), podWith(false), slice("s2", "n1", 15), rule("this", "gpu-0-share"),
		rule("that", "gpu-1-share"))...)
	in, err := cluster.Reader{Client: client, Namespace: "team-a"}.PodAndCluster(t.Context(), "p")
	expect.NoError(t, err)
	for _, s := range in.Slices {
		for _, d := range s.Spec.Devices {
			if len(d.Taints) != 1 || d.Taints[0].Key != "this" {
				t.Errorf("device %s has the taints %+v", d.Name, d.Taints)
			}
		}
	}
}

func TestErrorsOfExplain(t *testing.T) {
	for name, test := range map[string]struct{ forbidden, want string }{
		"no such pod":   {"", "there is no pod q in namespace team-a: -n names another one"},
		"no pods":       {"get pods team-a", "you may not read pod q of namespace team-a: ask for a Role with get on pods"},
		"no slices":     {"list resourceslices", "the GPUs are in ResourceSlices, which you may not list"},
		"no classes":    {"list deviceclasses", "claims ask by DeviceClasses, which you may not list"},
		"no such claim": {"", "there is no ResourceClaim q in namespace team-a"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(objects()...)
			if strings.HasPrefix(test.forbidden, "list") {
				client = fake.NewClientset(append(objects(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a",
					Name: "q"}})...)
			}
			forbid(client, test.forbidden)
			r := cluster.Reader{Client: client, Namespace: "team-a"}
			read := r.PodAndCluster
			if name == "no such claim" {
				read = r.ClaimAndCluster
			}
			_, err := read(t.Context(), "q")
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
