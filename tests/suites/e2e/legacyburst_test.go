// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/ledger"
)

const allocationAnnotation = "scheduler.framework.gpushare.allocation"

// serverSettles is how long after an API server is back the scheduler may not know yet what is
// allocated: clients ask again for what they watch after pauses of up to half of that.
const serverSettles = 30 * time.Second

// retriesEnd is how long after that what failed meanwhile may be tried again, which takes a kubelet up
// to a minute and a half.
const retriesEnd = 3 * time.Minute

// 500 pods in ACK's manner, which ask for several times what there is, come at once to nodes of four modes, while the
// controller's leader and the API server are killed. Each gets what it asked for, no GPU is in two hands, and nothing
// is left. It has the cluster to itself, as every test that is not parallel.
func TestFiveHundredLegacyPods(t *testing.T) {
	setMode := cluster.Label(t, flipNode, modeLabel)
	setMode("core_mem")
	cluster.Publishes(t, flipNode, harness.DevicesIn("core-mem")...)
	b := newBurst(t, 4)
	total := b.total()
	bystander := harness.Changed(harness.Asking("cpu 10m"),
		func(p *corev1.Pod) { p.Name, p.Annotations = "bystander", map[string]string{"a": "b"} })
	others := cluster.Namespace(t)
	others.Run(t, bystander)
	before := annotations(t, others)
	seen, stop := observeAllocations(t)

	began := time.Now()
	made := b.start(t)
	b.waitFor(t, "100 pods to be there", func(there, _ int) bool { return there >= 100 })
	t.Logf("%s: leader %s is killed", since(began), cluster.KillLeader(t))
	made()
	hadTheirGPUs := func(some int) {
		t.Helper()
		b.waitFor(t, fmt.Sprintf("%d pods to have had their GPUs", some), func(_, served int) bool { return served >= some })
	}
	hadTheirGPUs(60)
	t.Logf("%s: the API server is killed", since(began))
	outage := ledger.Outage{From: time.Now()}
	cluster.StopAPIServer(t)()
	cluster.WaitAPIServer(t)
	outage.To = time.Now().Add(serverSettles)
	outage.Over = outage.To.Add(retriesEnd)
	for _, some := range []int{150, 300} {
		hadTheirGPUs(some)
		t.Logf("%s: leader %s is killed", since(began), cluster.KillLeader(t))
	}
	b.waitFor(t, "all pods to have had their GPUs",
		func(there, served int) bool { return there == total && served == total })
	t.Logf("%s: all %d pods have had their GPUs", since(began), total)

	stop()
	b.checkRefused(t, seen.check(t, outage))
	b.checkContainers(t)
	b.checkAnnotations(t)
	b.remove(t)
	nothingLegacyLeft(t)
	t.Logf("%s: nothing is left of them", since(began))
	expect.Equal(t, before, annotations(t, others), "annotations of what did not ask for GPUs")
}

func since(began time.Time) time.Duration { return time.Since(began).Round(100 * time.Millisecond) }

// annotations are those of the nodes and of a namespace's pods.
func annotations(t *testing.T, ns *harness.Namespace) map[string]map[string]string {
	t.Helper()
	nodes, err := cluster.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	pods, err := cluster.Client.CoreV1().Pods(ns.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	found := map[string]map[string]string{}
	for _, node := range nodes.Items {
		found["node/"+node.Name] = node.Annotations
	}
	for _, pod := range pods.Items {
		found["pod/"+pod.Name] = pod.Annotations
	}
	return found
}

// checkAnnotations waits until the pods that stay have the annotation that legacy
// tools read, and checks that all that have it have what the containers saw.
func (b *burst) checkAnnotations(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "the pods that run to be annotated", func(context.Context) error {
		annotated := 0
		for i, ns := range b.namespaces {
			pods, err := b.pods[i].List(labels.Everything())
			if err != nil {
				return err
			}
			for _, pod := range pods {
				if _, ok := pod.Annotations[allocationAnnotation]; ok {
					annotated++
				} else if pod.Status.Phase == corev1.PodRunning {
					return fmt.Errorf("pod %s/%s is not", ns.Name, pod.Name)
				}
			}
		}
		t.Logf("%d pods are annotated", annotated)
		return nil
	})
	for i, ns := range b.namespaces {
		logs, err := ns.ContainerLogs()
		expect.NoError(t, err)
		saw := map[string]harness.ContainerLog{}
		for _, log := range logs {
			saw[log.Pod+"/"+log.Container] = log
		}
		pods, err := b.pods[i].List(labels.Everything())
		expect.NoError(t, err)
		for _, pod := range pods {
			text, ok := pod.Annotations[allocationAnnotation]
			if !ok {
				continue
			}
			want := map[int]map[string]int64{}
			for index, container := range pod.Spec.Containers {
				want[index] = unitsByGPU(saw[pod.Name+"/"+container.Name])
			}
			var got map[int]map[string]int64
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Errorf("pod %s/%s: annotation %q: %v", pod.Namespace, pod.Name, text, err)
			} else if diff := expect.Diff(want, got); diff != nil {
				t.Errorf("pod %s/%s: what its containers saw, and its annotation %v", pod.Namespace, pod.Name,
					diff)
			}
		}
	}
}

// unitsByGPU is what a container on shared GPUs saw of each, by the GPU's index.
func unitsByGPU(log harness.ContainerLog) map[string]int64 {
	units := map[string]int64{}
	env := printedEnv(log)
	for _, index := range strings.Split(env["ALIYUN_COM_GPU_MEM_IDX"], ",") {
		// The amounts are checked elsewhere.
		units[index], _ = strconv.ParseInt(env["ALIYUN_COM_GPU_MEM_CONTAINER"], 10, 64)
	}
	return units
}

// remove deletes all that was made, as a user does.
func (b *burst) remove(t *testing.T) {
	t.Helper()
	for _, ns := range b.namespaces {
		ns.MustKubectl(t, "delete", "deployments,jobs,pods", "--all", "--wait=false")
	}
	harness.Within(t, burstTimeout, "the pods to be gone", func(context.Context) error {
		there, _, err := b.progress()
		if err == nil && there > 0 {
			err = fmt.Errorf("%d are there", there)
		}
		return err
	})
}

// nothingLegacyLeft waits until nothing in the cluster is left of legacy pods: no
// claim, no template, and no node that keeps anything.
func nothingLegacyLeft(t *testing.T) {
	t.Helper()
	selector := metav1.ListOptions{LabelSelector: v1alpha1.LabelLegacy + "=true"}
	harness.Within(t, burstTimeout, "nothing to be left of legacy pods", func(ctx context.Context) error {
		claims, err := cluster.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, selector)
		if err != nil {
			return err
		}
		templates, err := cluster.Client.ResourceV1().ResourceClaimTemplates(metav1.NamespaceAll).List(ctx, selector)
		if err != nil {
			return err
		}
		if len(claims.Items)+len(templates.Items) > 0 {
			return fmt.Errorf("%d claims and %d templates are there", len(claims.Items), len(templates.Items))
		}
		nodes, err := cluster.NodeNames()
		if err != nil {
			return err
		}
		for _, node := range nodes {
			if err := cluster.CheckNothingOn(node); err != nil {
				return err
			}
		}
		return nil
	})
}

// While the controller is away pods are made as ever, and wait; when it is back, all
// of them start.
func TestControllerAwayWhileLegacyPodsCome(t *testing.T) {
	ns := cluster.Namespace(t)
	start := cluster.StopController(t)
	var pods []*corev1.Pod
	for i := range 4 {
		pod := harness.Asking(fmt.Sprintf("mem %d", i+1))
		pod.Name = fmt.Sprintf("p%d", i)
		pods = append(pods, pod)
	}
	ns.Create(t, harness.On("share", pods...)...)
	for _, pod := range pods {
		ns.WaitPodEvent(t, pod.Name, "FailedResourceClaimCreation", `"gpushare.mem.c0.`)
	}
	start()
	for i, pod := range pods {
		ns.WaitRunning(t, pod.Name)
		grants := ns.Granted(t, pod.Name)
		ns.HasEnv(t, pod.Name, "c0", harness.LegacyEnv(i+1, 22, i+1, grants[0].GPU.Index))
	}
}
