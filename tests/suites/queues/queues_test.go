// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package queues tests what docs/queues.md tells of Kueue, with Kueue itself, of the version that the module in kueue
// names. Lane queues builds it and makes the cluster: a node whose four GPUs are shared, and one with two whole GPUs.
package queues

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/component"
	"github.com/gpushare/dra-driver-gpushare/tests/suites/docs/commands"
)

const (
	checkout, page = "../../..", "docs/queues.md"
	// node has four GPUs, of which shares are 15 GiB each: twice the quota of the page's queue. wholeNode has two.
	node, wholeNode = "share", "whole"
	// queue is the page's, and team the namespace that it is in.
	queue, team = "gpus", "team-a"
	queueLabel  = "kueue.x-k8s.io/queue-name"
	// memory is what the page's settings count.
	memory = "gpu.aliyun.com/memory"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// block is the YAML of the page that has a text.
func block(t *testing.T, text string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(checkout, page))
	expect.NoError(t, err)
	for _, b := range commands.Blocks(page, string(content)) {
		if b.Language == "yaml" && strings.Contains(b.Text, text) {
			return b.Text
		}
	}
	t.Fatalf("%s has no YAML with %q", page, text)
	return ""
}

// settings are those of the page for claims.
func settings(t *testing.T) object {
	t.Helper()
	var s object
	expect.NoErrorf(t, yaml.Unmarshal([]byte(block(t, "deviceClassMappings")), &s), "the settings of %s", page)
	return s
}

// teamOf makes a namespace with the page's queues, after a replacement of words of theirs.
func teamOf(t *testing.T, replace ...string) *harness.Namespace {
	t.Helper()
	ns := cluster.Namespace(t)
	text := strings.NewReplacer(append(replace, team, ns.Name)...).Replace(block(t, "kind: ClusterQueue"))
	apply(t, component.Decode(t, page, []byte(text))...)
	return ns
}

// queued is a pod that joins the queue.
func queued(name, node string, options ...func(*corev1.Pod)) *corev1.Pod {
	return harness.Labelled(harness.Pod(name, node, options...), queueLabel, queue)
}

func gib(n int) func(*corev1.Pod) { return harness.Limit("aliyun.com/gpu-mem", fmt.Sprint(n)) }

// runJob makes a Job of so many such pods, which do not end.
func runJob(t *testing.T, ns *harness.Namespace, name string, pods int32, option func(*corev1.Pod)) {
	t.Helper()
	pod := harness.Pod(name, node, option)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{queueLabel: queue}},
		Spec: batchv1.JobSpec{Parallelism: &pods, Completions: &pods, BackoffLimit: ptr.To(int32(0)),
			Template: corev1.PodTemplateSpec{Spec: pod.Spec}}}
	harness.Make(t, ns.Client.BatchV1().Jobs(ns.Name), job)
}

func endJob(t *testing.T, ns *harness.Namespace, name string) {
	t.Helper()
	expect.NoErrorf(t, ns.Client.BatchV1().Jobs(ns.Name).Delete(t.Context(), name,
		metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}), "delete Job %s", name)
}

// waitJob waits until so many of a Job's pods run, and there are no others.
func waitJob(t *testing.T, ns *harness.Namespace, name string, want int) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("%d pods of Job %s to run", want, name), func(ctx context.Context) error {
		pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{
			LabelSelector: batchv1.JobNameLabel + "=" + name})
		if err != nil {
			return err
		}
		running := 0
		for _, pod := range pods.Items {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				running++
			}
		}
		if running != want || len(pods.Items) != want {
			return fmt.Errorf("%d run of %d that are there", running, len(pods.Items))
		}
		return nil
	})
}

// waitHeld waits until Kueue says why it does not admit what a Job or pod asks for, which has no claim then.
func waitHeld(t *testing.T, ns *harness.Namespace, name, because string) {
	t.Helper()
	harness.Eventually(t, name+" to be held back", func(ctx context.Context) error {
		workload, err := workloadOf(ctx, ns, name)
		if err != nil {
			return err
		}
		for _, c := range workload.Status.Conditions {
			if c.Type == "QuotaReserved" && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, because) {
				return nil
			}
		}
		return fmt.Errorf("none of its conditions says %q: %+v", because, workload.Status.Conditions)
	})
	ns.HoldsNothing(t, name+"-")
}

// workload is what the tests read of Kueue's object for a Job or pod.
type workload struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Status   struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

func workloadOf(ctx context.Context, ns *harness.Namespace, owner string) (workload, error) {
	var all struct {
		Items []workload `json:"items"`
	}
	if err := get(ctx, "namespaces/"+ns.Name+"/workloads", &all); err != nil {
		return workload{}, err
	}
	for _, w := range all.Items {
		if len(w.Metadata.OwnerReferences) > 0 && w.Metadata.OwnerReferences[0].Name == owner {
			return w, nil
		}
	}
	return workload{}, fmt.Errorf("none of %d workloads is of %s", len(all.Items), owner)
}

// get reads what Kueue's API has at a path.
func get(ctx context.Context, path string, into any) error {
	content, err := cluster.Client.Discovery().RESTClient().Get().AbsPath("/apis/kueue.x-k8s.io/v1beta2/" + path).
		Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}

// waitUsed waits until a team's queue counts such an amount of a resource.
func waitUsed(t *testing.T, ns *harness.Namespace, resource, want string) {
	t.Helper()
	harness.Eventually(t, "the queue to count "+want, func(ctx context.Context) error {
		var of struct {
			Status struct {
				FlavorsUsage []struct {
					Resources []struct{ Name, Total string }
				}
			}
		}
		if err := get(ctx, "clusterqueues/"+ns.Name, &of); err != nil {
			return err
		}
		for _, flavor := range of.Status.FlavorsUsage {
			for _, r := range flavor.Resources {
				if r.Name == resource && r.Total == want {
					return nil
				}
			}
		}
		return fmt.Errorf("it counts %+v", of.Status.FlavorsUsage)
	})
}

// Without a setting, Jobs have a quota in GiB: one is admitted, the next is held back until the first has ended.
func TestGiBOfJobs(t *testing.T) {
	startKueue(t)
	ns := teamOf(t)
	runJob(t, ns, "first", 2, gib(14))
	waitJob(t, ns, "first", 2)
	waitUsed(t, ns, "aliyun.com/gpu-mem", "28")
	runJob(t, ns, "second", 1, gib(3))
	waitHeld(t, ns, "second", "insufficient unused quota for aliyun.com/gpu-mem")
	waitJob(t, ns, "second", 0)
	endJob(t, ns, "first")
	waitJob(t, ns, "second", 1)
	waitUsed(t, ns, "aliyun.com/gpu-mem", "3")
}

// A team borrows what another leaves. When the other asks for its own, Kueue ends the borrower's pods, which gives the
// GPUs back: all four were taken.
func TestBorrowedGiBComeBack(t *testing.T) {
	startKueue(t)
	borrower, owner := teamOf(t), teamOf(t)
	runJob(t, borrower, "borrowing", 4, gib(15))
	waitJob(t, borrower, "borrowing", 4)
	began := time.Now()
	runJob(t, owner, "own", 2, gib(15))
	waitJob(t, owner, "own", 2)
	t.Logf("the owner's pods ran on GPUs that were all taken after %s", time.Since(began).Round(time.Second/10))
	waitJob(t, borrower, "borrowing", 0)
	waitHeld(t, borrower, "borrowing", "aliyun.com/gpu-mem")
	borrower.WaitNoClaims(t)
	endJob(t, owner, "own")
	waitJob(t, borrower, "borrowing", 4)
}

// With the page's settings, limits and claims draw on one quota in GiB, whatever makes the pod.
func TestGiBOfPodsAndClaims(t *testing.T) {
	startKueue(t, settings(t))
	ns := teamOf(t, "aliyun.com/gpu-mem", memory, "nominalQuota: 30", "nominalQuota: 30Gi")
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "12Gi")))
	ns.Template(t, "least", harness.Requests(harness.Share("gpu", "")))
	runJob(t, ns, "limit", 1, gib(9))
	runJob(t, ns, "claim", 1, harness.FromTemplate("share"))
	deploy(t, ns, queued("server", node, gib(3)))
	ns.Create(t, queued("pod", node, gib(5)), queued("default", node, harness.FromTemplate("least")))
	waitJob(t, ns, "limit", 1)
	waitJob(t, ns, "claim", 1)
	ns.WaitRunning(t, "pod")
	ns.WaitRunning(t, "default")
	waitUsed(t, ns, memory, "30Gi")
	ns.Create(t, queued("more", node, harness.FromTemplate("least")))
	waitHeld(t, ns, "more", "insufficient unused quota for "+memory)
	ns.Delete(t, "pod")
	ns.WaitRunning(t, "more")
}

// deploy makes a Deployment of one such pod, which joins the queue by its own label: Kueue gives it to the pod.
func deploy(t *testing.T, ns *harness.Namespace, pod *corev1.Pod) {
	t.Helper()
	deployment := harness.Deployment(pod.Name, 1, pod)
	deployment.Labels, deployment.Spec.Template.Labels = pod.Labels, deployment.Spec.Selector.MatchLabels
	ns.Deploy(t, deployment)
}

// Whole GPUs are counted together, by a claim and by nvidia.com/gpu.
func TestWholeGPUs(t *testing.T) {
	startKueue(t, settings(t))
	const whole = "gpu.aliyun.com/whole"
	ns := teamOf(t, "aliyun.com/gpu-mem", whole, "nominalQuota: 30", "nominalQuota: 1")
	ns.Template(t, "gpu", harness.Requests(harness.Exclusive("gpu", 1)))
	ns.Create(t, queued("limit", wholeNode, harness.Limit("nvidia.com/gpu", "1")))
	ns.WaitRunning(t, "limit")
	waitUsed(t, ns, whole, "1")
	ns.Create(t, queued("claim", wholeNode, harness.FromTemplate("gpu")))
	waitHeld(t, ns, "claim", "insufficient unused quota for "+whole)
	ns.Delete(t, "limit")
	ns.WaitRunning(t, "claim")
}

// Without sources, each share counts as one, also one that selects its GPU.
func TestNumberOfShares(t *testing.T) {
	counted := settings(t)
	delete(counted, "featureGates")
	resources := at(counted, "resources")
	delete(resources, "transformations")
	mappings, _ := resources["deviceClassMappings"].([]any)
	for _, mapping := range mappings {
		m, _ := mapping.(object)
		delete(m, "sources")
	}
	startKueue(t, counted)
	ns := teamOf(t, "aliyun.com/gpu-mem", memory, "nominalQuota: 30", "nominalQuota: 2")
	ns.Template(t, "share", harness.Requests(harness.Matching(harness.Share("gpu", "12Gi"), harness.OnGPU(3))))
	ns.Create(t, queued("selecting", node, harness.FromTemplate("share")), queued("limit", node, gib(2)))
	ns.WaitRunning(t, "selecting")
	ns.WaitRunning(t, "limit")
	waitUsed(t, ns, memory, "2")
	ns.Create(t, queued("more", node, gib(1)))
	waitHeld(t, ns, "more", "insufficient unused quota for "+memory)
	ns.Delete(t, "limit")
	ns.WaitRunning(t, "more")
}

// What the page says that Kueue refuses is refused, and has no GPU.
func TestRefused(t *testing.T) {
	startKueue(t, settings(t))
	ns := teamOf(t, "aliyun.com/gpu-mem", memory, "nominalQuota: 30", "nominalQuota: 30Gi")
	ns.Claim(t, "direct", harness.Requests(harness.Share("gpu", "1Gi")))
	all := harness.Share("gpu", "1Gi")
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	for name, request := range map[string]resourceapi.DeviceRequest{
		"first": {Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "one", DeviceClassName: harness.ShareClass}}},
		"all":      all,
		"unmapped": harness.OfClass("topology"),
	} {
		ns.Template(t, name, harness.Requests(request))
	}
	for name, test := range map[string]struct {
		option  func(*corev1.Pod)
		because string
	}{
		"direct":   {harness.FromClaim("direct"), "does not support use of resource claims"},
		"first":    {harness.FromTemplate("first"), "FirstAvailable device selection is not supported"},
		"all":      {harness.FromTemplate("all"), "AllocationMode 'All' is not supported"},
		"unmapped": {harness.FromTemplate("unmapped"), "DeviceClass topology.gpu.aliyun.com is not mapped"},
		"no-line":  {harness.Limit("cpu", "10m"), "resource cpu unavailable in ClusterQueue"},
	} {
		t.Run(name, func(t *testing.T) {
			runJob(t, ns, name, 1, test.option)
			waitHeld(t, ns, name, test.because)
			waitJob(t, ns, name, 0)
		})
	}
}
