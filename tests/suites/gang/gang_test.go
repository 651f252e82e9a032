// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package gang tests gangs in ACK's manner on a cluster that serves PodGroups, preemption,
// which is switched on there, and CPUs beside GPUs, whose DeviceClass disturbs nobody there;
// Lane gang makes it. Options for the whole cluster that would disturb other tests elsewhere are
// tested here, too. That clusters without PodGroups, or that class, say so is tested with the
// others, in tests/suites/e2e.
package gang

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// member is a pod of a gang, with limits as harness.Asking takes them.
func member(gang string, least, number int, node, limits string) *corev1.Pod {
	pod := harness.Asking(limits)
	pod.Labels = map[string]string{ack.LabelPodGroup: gang, ack.LabelMinAvailable: fmt.Sprint(least)}
	return harness.GoingTo(pod, fmt.Sprintf("%s-%d", gang, number), node)
}

// members are the pods of a gang.
func members(gang string, least, count int, node, limits string) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range count {
		pods = append(pods, member(gang, least, i, node, limits))
	}
	return pods
}

// runs counts the running pods whose names begin so.
func runs(ctx context.Context, ns *harness.Namespace, prefix string) (int, error) {
	pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range pods.Items {
		if strings.HasPrefix(pods.Items[i].Name, prefix) && pods.Items[i].Status.Phase == corev1.PodRunning {
			n++
		}
	}
	return n, nil
}

func waitRuns(t *testing.T, ns *harness.Namespace, prefix string, want int) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("%d pods %s… to run", want, prefix), func(ctx context.Context) error {
		n, err := runs(ctx, ns, prefix)
		if err == nil && n != want {
			err = fmt.Errorf("%d run", n)
		}
		return err
	})
}

// waitsWhole waits until the scheduler has refused the gang as one, and checks that none of
// its pods holds anything.
func waitsWhole(t *testing.T, ns *harness.Namespace, prefix string, pod string) {
	t.Helper()
	ns.WaitUnschedulable(t, pod, "minCount")
	holdsNothing(t, ns, prefix)
}

func holdsNothing(t *testing.T, ns *harness.Namespace, prefix string) {
	t.Helper()
	ns.HoldsNothing(t, prefix)
	if n, err := runs(t.Context(), ns, prefix); err != nil || n != 0 {
		t.Errorf("%d pods of the gang that waits run, %v", n, err)
	}
}

func waitNoGroup(t *testing.T, ns *harness.Namespace, name string) {
	t.Helper()
	harness.WaitNone(t, ns.Client.SchedulingV1beta1().PodGroups(ns.Name), name, "PodGroup "+name+" to be gone")
}

// names are those of pods.
func names(pods []*corev1.Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

// The document's job, with GPUs: five pods of which two are enough get what there is; five
// of which five are needed hold nothing until four are enough.
func TestJobOfTheDocument(t *testing.T) {
	ns := cluster.Namespace(t)
	ps, worker := harness.TFJob(t)
	var pods []*corev1.Pod
	for _, of := range []harness.TFReplica{ps, worker} {
		for range of.Replicas {
			template := of.Template.DeepCopy()
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("tf-%d", len(pods)), Labels: template.Labels},
				Spec: template.Spec}
			c := &pod.Spec.Containers[0]
			c.Image, c.ImagePullPolicy, c.Args, c.WorkingDir = harness.ProbeImage, corev1.PullNever, nil, ""
			c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
			pods = append(pods, harness.On("whole", pod)...)
		}
	}
	if len(pods) != 5 {
		t.Fatalf("the document's job has %d pods", len(pods))
	}
	ns.Create(t, pods...)
	waitRuns(t, ns, "tf-", 4)
	ns.Delete(t, names(pods)...)
	waitNoGroup(t, ns, "tf-smoke-gpu")

	for i, pod := range pods {
		pods[i] = harness.Changed(pod.DeepCopy(), func(p *corev1.Pod) {
			p.ResourceVersion, p.Labels = "", maps.Clone(pod.Labels)
			p.Labels[ack.LabelMinAvailable] = "5"
		})
	}
	ns.Create(t, pods...)
	waitsWhole(t, ns, "tf-", "tf-0")
	for _, pod := range pods {
		harness.Patch(t, ns.Client.CoreV1().Pods(ns.Name), pod.Name, types.MergePatchType,
			`{"metadata":{"labels":{"`+ack.LabelMinAvailable+`":"4"}}}`)
	}
	waitRuns(t, ns, "tf-", 4)
}

// Two gangs that together do not fit do not hold half of what each needs; the second comes
// when the first goes, a member that comes late is waited for, and what is created again under
// the same name is a gang again.
func TestGangsDoNotDeadlock(t *testing.T) {
	ns := cluster.Namespace(t)
	red, blue := members("red", 3, 3, "whole", "nvidia.com/gpu 1"), members("blue", 3, 3, "whole", "nvidia.com/gpu 1")
	for i := range red {
		ns.Create(t, red[i], blue[i])
	}
	var first, second string
	harness.Eventually(t, "a gang to run", func(ctx context.Context) error {
		for _, gang := range []string{"red", "blue"} {
			if n, err := runs(ctx, ns, gang); err != nil || n == 3 {
				first, second = gang, map[string]string{"red": "blue", "blue": "red"}[gang]
				return err
			}
		}
		return errors.New("none does")
	})
	waitsWhole(t, ns, second+"-", second+"-0")
	ns.Delete(t, first+"-0", first+"-1", first+"-2")
	waitRuns(t, ns, second, 3)

	late := members(first, 3, 3, "whole", "nvidia.com/gpu 1")
	ns.Create(t, late[:2]...)
	ns.Delete(t, second+"-0", second+"-1", second+"-2")
	// The scheduler went on: what came later and is no gang has its GPU.
	ns.Run(t, harness.GoingTo(harness.Asking("nvidia.com/gpu 1"), "other", "whole"))
	holdsNothing(t, ns, first+"-")
	ns.Create(t, late[2])
	waitRuns(t, ns, first, 3)
}

// Gangs of shares, of linked sets, and of pods with Koordinator's annotations.
func TestGangsOfEachKind(t *testing.T) {
	ns := cluster.Namespace(t)
	shares := members("shares", 5, 5, "share", "mem 15")
	ns.Create(t, shares...)
	waitsWhole(t, ns, "shares-", "shares-0")
	fit := members("fit", 4, 4, "share", "mem 15")
	for _, pod := range fit {
		pod.Annotations = map[string]string{ack.AnnotationGang: "fit", ack.AnnotationGangMin: "4"}
		pod.Labels = nil
	}
	ns.Create(t, fit...)
	waitRuns(t, ns, "fit-", 4)

	linked := members("linked", 3, 3, "linked", "gpu 4")
	ns.Create(t, linked...)
	waitsWhole(t, ns, "linked-", "linked-0")
	two := members("two", 2, 2, "linked", "gpu 4")
	ns.Create(t, two...)
	waitRuns(t, ns, "two-", 2)
}

// The last pods of a Job are fewer than a gang's, and nobody makes any further ones.
func TestLastPodsOfAJob(t *testing.T) {
	ns := cluster.Namespace(t)
	pod := member("waves", 4, 0, "share", "mem 3")
	pod.Spec.Containers[0].Args = []string{"for", "1s"}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "waves"},
		Spec: batchv1.JobSpec{Parallelism: ptr.To(int32(4)), Completions: ptr.To(int32(6)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec}},
	}
	jobs := ns.Client.BatchV1().Jobs(ns.Name)
	harness.Make(t, jobs, job)
	harness.Becomes(t, jobs, "waves", "all pods of the Job to have succeeded", func(job *batchv1.Job) error {
		if job.Status.Succeeded != 6 {
			return fmt.Errorf("%d have", job.Status.Succeeded)
		}
		return nil
	})
}

// A node that spreads its shares holds some back. A gang that needs them at once gets them.
func TestGangOnANodeThatSpreads(t *testing.T) {
	setPlacement := cluster.Label(t, "share", ack.NodeLabelPlacement)
	setPlacement("spread")
	ns := cluster.Namespace(t)
	ns.Create(t, members("round", 4, 4, "share", "mem 7")...)
	waitRuns(t, ns, "round-", 4)
	ns.Delete(t, names(members("round", 4, 4, "share", "mem 7"))...)
	ns.Create(t, members("rounds", 8, 8, "share", "mem 7")...)
	waitRuns(t, ns, "rounds-", 8)
}
