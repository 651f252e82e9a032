// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/tests/e2e/harness"
)

// evenness watches how evenly the shares of nodes' GPUs are allocated, at every moment.
type evenness struct {
	mu sync.Mutex
	// gpus is how many a node has.
	gpus map[string]int
	// claims are the GiB of each GPU that a claim was allocated, by node.
	claims map[types.UID]map[string]map[int]int64
	uneven []string
}

// watchEvenness fails the test where ever, of all shares that come and none that goes, the
// most that is taken of a GPU and the least differ by more than the largest share.
func watchEvenness(t *testing.T, gpus map[string]int) {
	t.Helper()
	e := &evenness{gpus: gpus, claims: map[types.UID]map[string]map[int]int64{}}
	factory := informers.NewSharedInformerFactory(cluster.Client, 0)
	claims := factory.Resource().V1().ResourceClaims().Informer()
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: e.see, UpdateFunc: func(_, object any) { e.see(object) }, DeleteFunc: e.forget,
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), claims.HasSynced) {
		t.Fatal(context.Cause(t.Context()))
	}
	t.Cleanup(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, what := range e.uneven {
			t.Error(what)
		}
	})
}

func (e *evenness) see(object any) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if claim.Status.Allocation == nil || e.claims[claim.UID] != nil {
		return
	}
	held := map[string]map[int]int64{}
	for _, result := range claim.Status.Allocation.Devices.Results {
		node := strings.TrimSuffix(result.Pool, "/gpu")
		indices, _, err := devices.ParseDeviceName(result.Device)
		if err != nil || e.gpus[node] == 0 {
			continue
		}
		if held[node] == nil {
			held[node] = map[int]int64{}
		}
		memory := result.ConsumedCapacity[v1alpha1.CapMemory]
		held[node][indices[0]] += memory.Value() / devices.GiB
	}
	e.claims[claim.UID] = held
	for node := range held {
		e.check(node)
	}
}

func (e *evenness) forget(object any) {
	if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = deleted.Obj
	}
	if claim, ok := object.(*resourceapi.ResourceClaim); ok {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.claims, claim.UID)
	}
}

func (e *evenness) check(node string) {
	taken, largest := make([]int64, e.gpus[node]), int64(0)
	for _, held := range e.claims {
		for index, units := range held[node] {
			taken[index] += units
			largest = max(largest, units)
		}
	}
	if slices.Max(taken)-slices.Min(taken) > largest {
		e.uneven = append(e.uneven, fmt.Sprintf("the GPUs of node %s had %v GiB taken, with no share larger than %d", node, taken, largest))
	}
}

// deploymentOn is one of a name whose pods go to some of the nodes.
func deploymentOn(name string, replicas int, pod *corev1.Pod, nodes ...string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	for key, value := range pod.Labels {
		labels[key] = value
	}
	spec := *pod.Spec.DeepCopy()
	spec.RestartPolicy, spec.NodeSelector = corev1.RestartPolicyAlways, nil
	spec.TerminationGracePeriodSeconds = ptr.To(int64(1))
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
		}}},
	}}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

func deploy(t *testing.T, ns *harness.Namespace, deployments ...*appsv1.Deployment) {
	t.Helper()
	for _, d := range deployments {
		if _, err := ns.Client.AppsV1().Deployments(ns.Name).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func scale(t *testing.T, ns *harness.Namespace, name string, replicas int) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	if _, err := ns.Client.AppsV1().Deployments(ns.Name).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hasTaken checks what pods of the namespace have of the GPUs of a node, whichever
// GPU has which.
func hasTaken(t *testing.T, ns *harness.Namespace, node string, want ...int64) {
	t.Helper()
	taken := ns.UnitsByCard(t, node)
	slices.Sort(taken)
	if diff := cmp.Diff(want, taken); diff != "" {
		t.Errorf("GiB taken of the GPUs of node %s, in order (-want +got):\n%s", node, diff)
	}
}

// spreadNode waits until nothing is left on a node of the test before, and it is spread.
func spreadNode(t *testing.T, node string, gpus int) {
	t.Helper()
	harness.Eventually(t, "the claims of node "+node+" to be gone", func(ctx context.Context) error {
		list, err := cluster.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, claim := range list.Items {
			if informer.AllocatedFrom(&claim) == node {
				return fmt.Errorf("claim %s/%s is there", claim.Namespace, claim.Name)
			}
		}
		return nil
	})
	cluster.Devices(t, node, "are spread and free", func(published []resourceapi.Device) error {
		if len(published) != gpus {
			return fmt.Errorf("there are %d", len(published))
		}
		for _, d := range published {
			if slots := d.Capacity[v1alpha1.CapSlots]; slots.Value.Value() != 1 {
				return fmt.Errorf("device %s offers %s shares", d.Name, slots.Value.String())
			}
		}
		return nil
	})
}

// The tables of spread, for the way people create pods. However many come at once, what
// is taken of two GPUs never differs by more than the largest share.
func TestSpreadIsEvenForDeployments(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	cluster.Label(t, "fill", ack.NodeLabelPlacement)("spread")
	legacy := func(gib int) *corev1.Pod { return harness.Asking(fmt.Sprintf("mem %d", gib)) }
	for _, test := range []struct {
		name string
		run  func(t *testing.T, ns *harness.Namespace)
		want []int64
	}{
		{"three replicas", func(t *testing.T, ns *harness.Namespace) {
			deploy(t, ns, deploymentOn("d", 3, legacy(4), "fill"))
			ns.PodsOf(t, "d", 3)
		}, []int64{0, 4, 4, 4}},
		{"eight replicas", func(t *testing.T, ns *harness.Namespace) {
			deploy(t, ns, deploymentOn("d", 8, legacy(4), "fill"))
			ns.PodsOf(t, "d", 8)
		}, []int64{8, 8, 8, 8}},
		{"scaled up", func(t *testing.T, ns *harness.Namespace) {
			deploy(t, ns, deploymentOn("d", 1, legacy(4), "fill"))
			for _, replicas := range []int{1, 3, 8} {
				scale(t, ns, "d", replicas)
				ns.PodsOf(t, "d", replicas)
			}
		}, []int64{8, 8, 8, 8}},
		{"applied in a row", func(t *testing.T, ns *harness.Namespace) {
			for _, name := range []string{"a", "b", "c"} {
				deploy(t, ns, deploymentOn(name, 1, legacy(4), "fill"))
			}
			for _, name := range []string{"a", "b", "c"} {
				ns.PodsOf(t, name, 1)
			}
		}, []int64{0, 4, 4, 4}},
		{"claims", func(t *testing.T, ns *harness.Namespace) {
			ns.Template(t, "four", harness.Requests(harness.Share("gpu", "4Gi")))
			deploy(t, ns, deploymentOn("d", 8, harness.Pod("p", "fill", harness.FromTemplate("four")), "fill"))
			ns.PodsOf(t, "d", 8)
		}, []int64{8, 8, 8, 8}},
		{"several containers", func(t *testing.T, ns *harness.Namespace) {
			deploy(t, ns, deploymentOn("d", 8, harness.Asking("mem 2", "mem 1"), "fill"))
			ns.PodsOf(t, "d", 8)
		}, []int64{6, 6, 6, 6}},
		{"several GPUs", func(t *testing.T, ns *harness.Namespace) {
			pod := harness.Labelled(harness.Asking("mem 6"), ack.PodLabelCount, "2")
			deploy(t, ns, deploymentOn("d", 4, pod, "fill"))
			ns.PodsOf(t, "d", 4)
		}, []int64{6, 6, 6, 6}},
		{"the plugin restarted", func(t *testing.T, ns *harness.Namespace) {
			deploy(t, ns, deploymentOn("d", 3, legacy(4), "fill"))
			ns.PodsOf(t, "d", 3)
			cluster.KillPlugin(t, "fill")()
			scale(t, ns, "d", 8)
			ns.PodsOf(t, "d", 8)
		}, []int64{8, 8, 8, 8}},
	} {
		t.Run(test.name, func(t *testing.T) {
			spreadNode(t, "fill", 4)
			watchEvenness(t, map[string]int{"fill": 4})
			ns := cluster.Namespace(t)
			test.run(t, ns)
			hasTaken(t, ns, "fill", test.want...)
		})
	}
	t.Run("of all sizes", func(t *testing.T) {
		spreadNode(t, "fill", 4)
		watchEvenness(t, map[string]int{"fill": 4})
		ns := cluster.Namespace(t)
		sizes := []int{1, 5, 2, 6, 3}
		for _, gib := range sizes {
			deploy(t, ns, deploymentOn(fmt.Sprintf("of-%d", gib), 2, legacy(gib), "fill"))
		}
		for _, gib := range sizes {
			ns.PodsOf(t, fmt.Sprintf("of-%d", gib), 2)
		}
	})
}

func TestSpreadIsEvenOnTwoNodes(t *testing.T) {
	t.Parallel()
	gpus := map[string]int{"fill": 4, flipNode: 4}
	for _, node := range []string{"fill", flipNode} {
		cluster.Whole(t, node)
		cluster.Label(t, node, ack.NodeLabelPlacement)("spread")
		spreadNode(t, node, 4)
	}
	watchEvenness(t, gpus)
	ns := cluster.Namespace(t)
	deploy(t, ns, deploymentOn("d", 16, harness.Asking("mem 4"), "fill", flipNode))
	ns.PodsOf(t, "d", 16)
}

// 32 pods on eight GPUs.
func TestSpreadOfManyPods(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "whole")
	setMode, setPlacement := cluster.Label(t, "whole", modeLabel), cluster.Label(t, "whole", ack.NodeLabelPlacement)
	setPlacement("spread")
	setMode("share")
	spreadNode(t, "whole", 8)
	watchEvenness(t, map[string]int{"whole": 8})
	ns := cluster.Namespace(t)
	began := time.Now()
	deploy(t, ns, deploymentOn("d", 32, harness.Asking("mem 4"), "whole"))
	ns.PodsOf(t, "d", 32)
	t.Logf("32 pods run after %s", since(began))
	hasTaken(t, ns, "whole", 16, 16, 16, 16, 16, 16, 16, 16)
}

// What a spread node holds back for the sake of evenness is there for whoever needs it.
func TestNothingWaitsForEverWhereSharesAreSpread(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	cluster.Label(t, "fill", ack.NodeLabelPlacement)("spread")
	start := func(t *testing.T) *harness.Namespace {
		spreadNode(t, "fill", 4)
		ns := cluster.Namespace(t)
		ns.Template(t, "first", harness.Requests(harness.Capped("share", 0, "memory", "4Gi")))
		return ns
	}
	t.Run("claims that name a GPU", func(t *testing.T) {
		ns := start(t)
		for _, name := range []string{"a", "b", "c"} {
			ns.Run(t, harness.Pod(name, "fill", harness.FromTemplate("first")))
		}
		ns.HasUnits(t, "fill", 12, 0, 0, 0)
	})
	t.Run("claims for several GPUs", func(t *testing.T) {
		ns := start(t)
		ns.Run(t, harness.Pod("a", "fill", harness.FromTemplate("first")))
		pod := harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "4")
		ns.Run(t, harness.On("fill", pod)...)
		ns.HasUnits(t, "fill", 6, 2, 2, 2)
	})
	// The kubelet tries again for its pods that met no plugin, some time later; the others
	// need not wait for them.
	t.Run("while the plugin restarts", func(t *testing.T) {
		ns := start(t)
		wait := cluster.KillPlugin(t, "fill")
		deploy(t, ns, deploymentOn("d", 8, harness.Asking("mem 4"), "fill"))
		wait()
		began := time.Now()
		err := harness.Poll(t.Context(), 3*time.Minute, func(ctx context.Context) error {
			d, err := ns.Client.AppsV1().Deployments(ns.Name).Get(ctx, "d", metav1.GetOptions{})
			if err == nil && d.Status.ReadyReplicas < 8 {
				err = fmt.Errorf("%d are", d.Status.ReadyReplicas)
			}
			return err
		})
		if err != nil {
			t.Fatalf("wait for 8 pods to be ready: %v", err)
		}
		t.Logf("8 pods run %s after the plugin does again", since(began))
	})
	// Nobody but the scheduler knows what a pod was allocated that waits for its volumes.
	t.Run("beside a pod that never starts", func(t *testing.T) {
		ns := start(t)
		stuck := harness.Pod("stuck", "fill", harness.FromTemplate("first"))
		stuck.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}},
		}}}
		stuck.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		ns.Create(t, stuck)
		harness.Eventually(t, "the pod to be on its node", func(ctx context.Context) error {
			pod, err := ns.Client.CoreV1().Pods(ns.Name).Get(ctx, stuck.Name, metav1.GetOptions{})
			if err == nil && pod.Spec.NodeName == "" {
				err = fmt.Errorf("it is on none")
			}
			return err
		})
		deploy(t, ns, deploymentOn("d", 9, harness.Asking("mem 4"), "fill"))
		ns.PodsOf(t, "d", 9)
	})
}

// binpack: a share goes to the fullest GPU that has room for it.
func TestBinpackFillsTheFullestGPU(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Capped("share", 0, "memory", "3Gi")))
	ns.Template(t, "nine", harness.Requests(harness.Capped("share", 1, "memory", "9Gi")))
	ns.Run(t, harness.Pod("three", "fill", harness.FromTemplate("three")), harness.Pod("nine", "fill", harness.FromTemplate("nine")))
	cluster.Slice(t, "fill", "offers the fullest GPU first", func(slice *resourceapi.ResourceSlice) error {
		if got := slice.Spec.Devices[0].Name; got != "gpu-1-share" {
			return fmt.Errorf("it offers %s", got)
		}
		return nil
	})
	deploy(t, ns, deploymentOn("d", 1, harness.Asking("mem 3"), "fill"))
	ns.PodsOf(t, "d", 1)
	ns.HasUnits(t, "fill", 3, 12, 0, 0)
	scale(t, ns, "d", 3)
	ns.PodsOf(t, "d", 3)
	ns.HasUnits(t, "fill", 6, 15, 0, 0)
}

// A GPU that is free again is the next one's, and a label that is not understood is binpack.
func TestSpreadGoesToTheGPUThatIsFree(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	setPlacement := cluster.Label(t, "fill", ack.NodeLabelPlacement)
	setPlacement("spread")
	spreadNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	ns.Template(t, "four", harness.Requests(harness.Share("gpu", "4Gi")))
	for i := range 4 {
		ns.Run(t, harness.Pod(fmt.Sprintf("p%d", i), "fill", harness.FromTemplate("four")))
	}
	ns.HasUnits(t, "fill", 4, 4, 4, 4)
	ns.Delete(t, "p2")
	ns.Run(t, harness.Pod("again", "fill", harness.FromTemplate("four")))
	ns.HasUnits(t, "fill", 4, 4, 4, 4)

	began := time.Now()
	setPlacement("random")
	cluster.WaitNodeEvent(t, "fill", began, "GPUInvalidLabel", `ack.node.gpu.placement="random"`)
	cluster.Devices(t, "fill", "are packed", func(published []resourceapi.Device) error {
		if slots := published[0].Capacity[v1alpha1.CapSlots]; slots.Value.Value() != 20 {
			return fmt.Errorf("device %s offers %s shares", published[0].Name, slots.Value.String())
		}
		return nil
	})
}
