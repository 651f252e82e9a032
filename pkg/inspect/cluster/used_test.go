// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// pluginOn is the plugin's pod on a node.
func pluginOn(node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "plugin-" + node,
		Labels: map[string]string{"app.kubernetes.io/component": "gpu-kubelet-plugin"}},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "gpu-kubelet-plugin", Containers: []corev1.Container{{
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// What is used is read of the plugins of the nodes that publish GPUs; that of others is a dash,
// and a line says why.
func TestReadsWhatIsUsedOnNodes(t *testing.T) {
	const metrics = `# TYPE gpushare_audit_findings gauge
gpushare_audit_findings{kind="over-share"} 0
# TYPE gpushare_gpu_memory_used_bytes gauge
gpushare_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"} 4194304
gpushare_gpu_memory_used_bytes{gpu="1",uuid="GPU-1"} 0
# TYPE gpushare_claim_memory_peak_bytes gauge
gpushare_claim_memory_peak_bytes{claim="c",container="a",gpu="0",namespace="team-a",pod="p",uuid="GPU-0"} 2097152
gpushare_claim_memory_peak_bytes{claim="c",container="b",gpu="0",namespace="team-a",pod="p",uuid="GPU-0"} 2097152
# TYPE gpushare_claim_memory_used_bytes gauge
gpushare_claim_memory_used_bytes{claim="c",container="a",gpu="0",namespace="team-a",pod="p",uuid="GPU-0"} 1048576
gpushare_claim_memory_used_bytes{claim="c",container="b",gpu="0",namespace="team-a",pod="p",uuid="GPU-0"} 2097152
gpushare_claim_memory_used_bytes{claim="c",container="b",gpu="0",namespace="team-b",pod="p",uuid="GPU-0"} 1024
`
	const ending = metrics + `gpushare_claim_memory_used_bytes{claim="g",container="",gpu="1",namespace="team-a",pod="",uuid="GPU-1"} 5242880
`
	gone := strings.Replace(ending, "gauge", "gauge\ngpushare_audit_findings{kind=\"gone-pod\"} 1", 1)
	g := inspect.ClaimOn{Namespace: "team-a", Claim: "g", GPU: 1}
	n1 := inspect.NodeUse{GPUs: map[int]int64{0: 4 << 20, 1: 0}, Claims: map[inspect.ClaimOn]int64{
		{Namespace: "team-a", Claim: "c", GPU: 0}: 3 << 20, {Namespace: "team-b", Claim: "c", GPU: 0}: 1024},
		Peaks: map[inspect.ClaimOn]int64{{Namespace: "team-a", Claim: "c", GPU: 0}: 4 << 20}}
	ends, stays := n1, n1
	ends.Claims = maps.Clone(n1.Claims)
	ends.Claims[g] = 5 << 20
	stays.Claims, stays.Gone = ends.Claims, map[inspect.ClaimOn]int64{g: 5 << 20}
	for name, test := range map[string]struct {
		forbidden, metrics string
		plugins            []string
		most               int
		want               map[string]inspect.NodeUse
		note               string
	}{
		"of one of two": {"", metrics, []string{"n1"}, 0, map[string]inspect.NodeUse{"n1": n1},
			"What is used on node n2 is not known: no pod of gpu-kubelet-plugin runs on node n2."},
		"of both": {"", metrics, []string{"n1", "n2"}, 2, map[string]inspect.NodeUse{"n1": n1, "n2": n1}, ""},
		"of none": {"", "# nothing\n", []string{"n1", "n2"}, 0, map[string]inspect.NodeUse{},
			"What is used on nodes n1, n2 is not known: the node's plugin does not look at who uses what"},
		"a pod that is about to end": {"", ending, []string{"n1", "n2"}, 0,
			map[string]inspect.NodeUse{"n1": ends, "n2": ends}, ""},
		"a pod that is gone and stays": {"", gone, []string{"n1", "n2"}, 0,
			map[string]inspect.NodeUse{"n1": stays, "n2": stays},
			"Pods that are gone still use GPUs of node n2: 5 MiB of GPU 1 by claim team-a/g. `kubectl describe node n2` says"},
		"not of so many": {"", metrics, []string{"n1", "n2"}, 1, nil, ""},
		"without the right": {"list pods", metrics, nil, 0, map[string]inspect.NodeUse{},
			"You may not list the pods of all namespaces: what is used is not known."},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, node := range test.plugins {
				expect.NoError(t, client.Tracker().Add(pluginOn(node)))
			}
			forbid(client, test.forbidden)
			client.AddProxyReactor("pods", func(clienttesting.Action) (bool, rest.ResponseWrapper, error) {
				return true, answered(test.metrics), nil
			})
			in := inspect.Input{Slices: []*resourceapi.ResourceSlice{
				{Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: ptr.To("n2")}},
				{Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: ptr.To("n1")}},
			}}
			usage := &cluster.Usage{Reader: cluster.Reader{Client: client}, Most: test.most}
			usage.Fill(t.Context(), &in)
			expect.Equal(t, test.want, in.Used, "used")
			expect.Says(t, strings.Join(in.Notes, "\n"), test.note)
			// It is not read again at once, and said again.
			asked, again := len(client.Actions()), inspect.Input{Slices: in.Slices}
			usage.Fill(t.Context(), &again)
			if len(client.Actions()) != asked || expect.Diff(in, again) != nil {
				t.Errorf("filled again it is %+v, after %d further requests", again, len(client.Actions())-asked)
			}
		})
	}
}
