// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/fromack"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func ofGang(pod *corev1.Pod, least string) *corev1.Pod {
	pod.Namespace = "team"
	pod.Labels = map[string]string{"pod-group.scheduling.sigs.k8s.io/name": "g",
		"pod-group.scheduling.sigs.k8s.io/min-available": least}
	return pod
}

// Members that run already count for what a gang needs at once.
func TestMembersThatRunCount(t *testing.T) {
	const labels = `, pod-group.scheduling.sigs.k8s.io/name: g, pod-group.scheduling.sigs.k8s.io/min-available: "4"`
	for running, want := range map[int][]string{
		2: {"train-0=n1:gpu-0-share", "train-1=n1:gpu-0-share", "train-2=-"}, 1: {"train-0=-", "train-1=-", "train-2=-"}} {
		s := newSite(t)
		s.node("n1", 1, mode.Share)
		s.read(t, workload("Deployment", 3, "aliyun.com/gpu-mem: 7", labels))
		for range running {
			s.Bound = append(s.Bound, ofGang(ackPod("runs", "n1", 1, nil), "4"))
		}
		other := ofGang(ackPod("other", "n1", 1, nil), "4")
		other.Namespace = "elsewhere"
		s.Bound = append(s.Bound, other)
		made := s.plan(t)
		expect.Equal(t, want, verdicts(made), "verdicts while %d run\n%s", running, printed(t, made))
		if running == 1 {
			expect.Says(t, printed(t, made), "of its gang team/g 1 are there already, 2 would find room at once, and it needs 4")
		}
		s.PodsUnknown = true
		expect.Says(t, strings.Join(s.plan(t).Notes, "\n"), "Not looked at: which pods of its gang run already")
	}
}

// Of a gang on ACK, those without GPUs are not planned, and count.
func TestMembersWithoutGPUsCount(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	pods := []*corev1.Pod{ofGang(ackPod("launcher", "", 1, nil), "3"), ofGang(ackPod("master", "n1", 1, nil), "3"),
		ofGang(ackPod("worker", "", 2, map[string]string{"aliyun.com/gpu-mem": "8"}), "3")}
	s.Bound = pods[1:2]
	expect.NoError(t, fromack.Move(&s.Input, pods))
	expect.Equal(t, []string{"worker=n1:gpu-0-share"}, verdicts(s.plan(t)), "verdicts")
}

// Who may not read nodes is not told that a pod waits for a label of one.
func TestWhatNodesSayIsNotKnown(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.Nodes[0].Labels, s.NodesUnknown = nil, true
	selects := func(text string) string {
		return strings.Replace(text, "    spec:\n      containers", "    spec:\n      nodeSelector: {zone: a}\n      "+
			"affinity: "+
			"{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: "+
			"[{key: b, operator: Exists}]}]}}}\n      containers", 1)
	}
	s.read(t, selects(workload("Deployment", 1, "aliyun.com/gpu-mem: 2"))+"---"+selects(strings.ReplaceAll(strings.Replace(
		workload("DaemonSet", 0, "aliyun.com/gpu-mem: 2"), "  replicas: 0\n", "", 1), "train", "agent")))
	made := s.plan(t)
	expect.Equal(t, []string{"train-0=n1:gpu-0-share", "agent-n1=n1:gpu-0-share"}, verdicts(made), "verdicts")
	expect.Says(t, strings.Join(made.Notes, "\n"), "Not looked at: nodeSelector and node affinity, because you may not "+
		"read nodes (deployment/train, daemonset/agent).")
}

// A device of another driver that several nodes reach is given to one pod.
func TestDevicesOfManyNodesAreGivenOnce(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.node("n2", 1, mode.Share)
	s.network("fabric")
	s.read(t, strings.Replace(workload("Deployment", 3, "cpu: 1"), "    spec:\n      containers",
		"    spec:\n      resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]\n      containers", 1)+`
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: fabric}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: fabric}
spec: {selectors: [{cel: {expression: 'device.driver == "fabric"'}}]}
`)
	expect.Equal(t, []string{"train-0=n1:only", "train-1=-", "train-2=-"}, verdicts(s.plan(t)), "verdicts")
}

// What is not looked at is said also of StatefulSets' volumes, of DaemonSets' affinity and of
// ports of nodes.
func TestNotLookedAt(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.read(t, strings.Replace(workload("StatefulSet", 1, "aliyun.com/gpu-mem: 2"), "  selector", "  serviceName: train\n"+
		"  volumeClaimTemplates: [{metadata: {name: data}, spec: {}}]\n  selector", 1)+"---"+
		strings.NewReplacer("  replicas: 0\n", "", "train", "agent", "    spec:\n", "    spec:\n      affinity: "+
			"{podAffinity: {}}\n",
			"{name: main", "{name: main, ports: [{containerPort: 80, hostPort: 80}]").Replace(
			workload("DaemonSet", 0, "aliyun.com/gpu-mem: 2")))
	expect.Says(t, strings.Join(s.plan(t).Notes, "\n"), "Not looked at: where volumes can be (statefulset/train).",
		"Not looked at: affinity towards other pods (daemonset/agent).",
		"Not looked at: ports of nodes (hostPort, hostNetwork) (daemonset/agent).")
}
