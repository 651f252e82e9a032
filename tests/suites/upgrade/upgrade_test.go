// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package upgrade updates the driver from a released version to this one while pods run,
// and checks that they notice nothing and are accounted for. the lane brings the cluster
// up, with the released version on it.
package upgrade

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const failedPrepare = "FailedPrepareDynamicResources"

// nodes are those of the lane.
var nodes = []string{"dynamic", "mps", "share", "topo", "whole"}

// upgrade is the cluster and the namespace of the pods.
type upgrade struct {
	*harness.Namespace
}

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

func TestPodsRunOnAndCount(t *testing.T) {
	u := &upgrade{cluster.Namespace(t)}
	u.templates(t)
	before := u.pods("old")
	u.Run(t, before...)
	containers, held := u.Containers(t), u.grants(t)
	if len(held) < len(before)-1 {
		t.Fatalf("%d claims of %d pods are prepared: %v", len(held), len(before), held)
	}

	u.install(t)

	u.keptRunning(t, containers)
	u.keeps(t, held)
	u.publishesWhatIsAllocated(t)
	for _, node := range nodes {
		u.LoggedNoError(t, node, metav1.NewTime(time.Now().Add(-time.Hour)))
	}

	// The kubelet asks for what it had asked the released version for.
	u.Tool(t, "node", "restart-kubelet", "share")
	u.Plugin(t, "share")
	u.KillContainer(t, "old-again")
	harness.Eventually(t, "the container to start again on what it had", func(ctx context.Context) error {
		return u.CheckRestarted(ctx, "old-again", containers["old-again"])
	})
	delete(containers, "old-again")
	u.keeps(t, held)

	u.refusesWhatIsHeld(t)
	after := u.pods("new")
	u.Run(t, after...)
	rest := u.fill(t)
	u.keptRunning(t, containers)

	// As docs/internals/development.md says, once nothing uses MPS. The pods here use none.
	u.ReplaceSupervisor(t, "mps")
	u.Run(t, harness.Pod("mps-after", "mps", harness.FromTemplate("mps")))

	u.Delete(t, names(before)...)
	u.releases(t, held)
	u.Delete(t, "mps-after")
	u.Delete(t, names(after)...)
	u.Delete(t, rest...)
	harness.Eventually(t, "nothing to be left", u.nothingLeft)
}

// templates are those of the pods' claims, one for each way to have a GPU.
func (u *upgrade) templates(t *testing.T) {
	t.Helper()
	u.Claim(t, "both", harness.Requests(harness.Share("gpu", "2Gi")))
	for name, request := range map[string]resourceapi.DeviceRequest{
		"exclusive": harness.Exclusive("gpu", 1),
		"seven":     harness.Share("gpu", "7Gi"),
		"mps":       harness.Capped("mps", -1, "memory", "4Gi"),
		"cgpu":      harness.Capped("cgpu", -1, "memory", "4Gi"),
		"core-mem":  harness.Capped("core-mem", -1, "memory", "4Gi", "cores", "25"),
		"linked":    harness.Linked("gpu", 2, 1),
	} {
		u.Template(t, name, harness.Requests(request))
	}
}

// pods have GPUs in every mode, by claims and as on ACK.
func (u *upgrade) pods(prefix string) []*corev1.Pod {
	claiming := func(name, node, template string, options ...func(*corev1.Pod)) *corev1.Pod {
		return harness.Pod(prefix+"-"+name, node, append(options, harness.FromTemplate(template))...)
	}
	asking := func(name, node string, limits ...string) *corev1.Pod {
		return harness.GoingTo(harness.Asking(limits...), prefix+"-"+name, node)
	}
	restarted := func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }
	return []*corev1.Pod{
		claiming("seven", "share", "seven"),
		claiming("again", "share", "seven", restarted),
		harness.Pod(prefix+"-one", "share", harness.FromClaim("both")),
		harness.Pod(prefix+"-two", "share", harness.FromClaim("both")),
		asking("legacy", "share", "mem 3"),
		asking("legacy-two", "share", "mem 1", "mem 2"),
		claiming("exclusive", "whole", "exclusive"),
		harness.Pod(prefix+"-nvidia", "whole", harness.Limit("nvidia.com/gpu", "1")),
		claiming("mps", "mps", "mps"),
		asking("legacy-mps", "mps", "mem 2"),
		claiming("dynamic-exclusive", "dynamic", "exclusive"),
		claiming("dynamic-share", "dynamic", "seven"),
		claiming("dynamic-cgpu", "dynamic", "cgpu"),
		claiming("dynamic-core-mem", "dynamic", "core-mem"),
		claiming("linked", "topo", "linked"),
		asking("legacy-linked", "topo", "gpu 2"),
	}
}

func names(pods []*corev1.Pod) []string {
	var out []string
	for _, pod := range pods {
		out = append(out, pod.Name)
	}
	return out
}

// grants is what the plugins have written down, by claim, as this version reads it.
func (u *upgrade) grants(t *testing.T) map[types.UID][]claim.Grant {
	t.Helper()
	out := map[types.UID][]claim.Grant{}
	for _, node := range nodes {
		records, err := u.Records(node)
		expect.NoError(t, err)
		for _, record := range records {
			out[record.UID] = record.Grants
		}
	}
	return out
}

// install applies this version as a user does: gpu-mps-supervisor stays as it is.
func (u *upgrade) install(t *testing.T) {
	t.Helper()
	plugins := map[string]types.UID{}
	for _, node := range nodes {
		plugins[node] = u.Plugin(t, node).UID
	}
	image, tool := os.Getenv("UPGRADE_IMAGE"), filepath.Join("..", "..", "..", ".build", "bin", "cluster")
	u.Tool(t, "up", "--nodes", os.Getenv("UPGRADE_NODES"), "--image", image)
	command := exec.CommandContext(t.Context(), filepath.Join("..", "..", "cluster", "install-driver.sh"), image, tool,
		"--dir", u.Dir)
	command.Env = append(os.Environ(), "KEEP_SUPERVISORS=1")
	output, err := command.CombinedOutput()
	t.Logf("%s\n%s", command, output)
	expect.NoError(t, err)
	for _, node := range nodes {
		if u.Plugin(t, node).UID == plugins[node] {
			t.Fatalf("the plugin of node %s is the one of the old version", node)
		}
	}
}

// keptRunning checks that nothing of the pods was restarted.
func (u *upgrade) keptRunning(t *testing.T, before map[string]string) {
	t.Helper()
	u.KeptRunning(t, before)
	pods, err := u.Client.CoreV1().Pods(u.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if _, watched := before[pod.Name]; watched && status.RestartCount > 0 {
				t.Errorf("container %s of pod %s was restarted %d times", status.Name, pod.Name, status.RestartCount)
			}
		}
	}
	events, err := u.Client.CoreV1().Events(u.Name).List(t.Context(),
		metav1.ListOptions{FieldSelector: "reason=" + failedPrepare})
	expect.NoError(t, err)
	for _, event := range events.Items {
		if event.InvolvedObject.Name != "forged" {
			t.Errorf("pod %s: %s", event.InvolvedObject.Name, event.Message)
		}
	}
}

// keeps checks that what claims were granted stands in the plugins' records still.
func (u *upgrade) keeps(t *testing.T, held map[types.UID][]claim.Grant) {
	t.Helper()
	expect.Equal(t, held, u.grants(t), "what claims hold on the nodes")
}

// publishesWhatIsAllocated checks that every device that the released version published,
// and that is in use, is there, and without a taint.
func (u *upgrade) publishesWhatIsAllocated(t *testing.T) {
	t.Helper()
	claims, err := u.Client.ResourceV1().ResourceClaims(u.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	used := map[string][]string{}
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			t.Errorf("claim %s is not allocated any more", c.Name)
			continue
		}
		for _, result := range c.Status.Allocation.Devices.Results {
			used[result.Pool] = append(used[result.Pool], result.Device)
		}
	}
	for _, node := range nodes {
		if len(used[v1alpha1.PoolName(node)]) == 0 {
			t.Errorf("no device of node %s is allocated", node)
		}
		u.Devices(t, node, fmt.Sprintf("have %q among them", used[v1alpha1.PoolName(node)]),
			func(published []resourceapi.Device) error {
				for _, name := range used[v1alpha1.PoolName(node)] {
					i := slices.IndexFunc(published, func(d resourceapi.Device) bool { return d.Name == name })
					if i < 0 {
						return fmt.Errorf("there is no %s", name)
					}
					if taints := published[i].Taints; len(taints) > 0 {
						return fmt.Errorf("device %s has the taints %v", name, taints)
					}
				}
				return nil
			})
	}
}

// refusesWhatIsHeld allocates what a pod has had since the released version a second
// time, which only the plugin's records can tell from an allocation in order.
func (u *upgrade) refusesWhatIsHeld(t *testing.T) {
	t.Helper()
	u.Create(t, harness.Pod("forged", "share", harness.FromTemplate("seven"), harness.OfNobody))
	// More than is left of the GPU, whatever else is on it.
	allocation := u.ClaimOf(t, "old-seven").Status.Allocation.DeepCopy()
	for i := range allocation.Devices.Results {
		allocation.Devices.Results[i].ConsumedCapacity[v1alpha1.CapMemory] = resource.MustParse("15Gi")
	}
	u.Promise(t, "forged", "share", allocation)
	u.WaitPodEvent(t, "forged", failedPrepare, "a GPU would be promised twice")
	u.Delete(t, "forged")
}
