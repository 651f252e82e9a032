// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// PluginNamespace and PluginSelector are where the plugin's pods are found.
const (
	PluginNamespace = "kube-system"
	PluginSelector  = "app.kubernetes.io/component=gpu-kubelet-plugin"
)

// logTail is how many of a plugin's last lines are shown.
const logTail = 25

// Describe is what a person would look at to find out why a test failed: the
// namespace's pods, claims and Events, what the nodes publish, and the end of the
// plugins' logs. What cannot be read says so.
func (n *Namespace) Describe(ctx context.Context) string {
	var b strings.Builder
	fmt.Fprintf(&b, "--- namespace %s (cluster %s)\n", n.Name, n.Dir)
	n.describePods(ctx, &b)
	n.describeClaims(ctx, &b)
	n.describeEvents(ctx, &b)
	n.describeNodes(ctx, &b)
	n.describeControllers(ctx, &b)
	return b.String()
}

func (n *Namespace) describePods(ctx context.Context, b *strings.Builder) {
	pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(b, "pods: %v\n", err)
		return
	}
	for _, pod := range pods.Items {
		fmt.Fprintf(b, "pod %s on %q: %s %s %s\n", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Message,
			unscheduledBecause(&pod))
		for _, state := range containerStates(&pod) {
			fmt.Fprintf(b, "  %s\n", state)
		}
	}
}

// containerStates tells of the containers that wait or have ended, and why.
func containerStates(pod *corev1.Pod) []string {
	var states []string
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			states = append(states, fmt.Sprintf("container %s waits: %s %s", status.Name, waiting.Reason, waiting.Message))
		}
		if ended := status.State.Terminated; ended != nil {
			states = append(states, fmt.Sprintf("container %s ended: %s %d %s", status.Name, ended.Reason, ended.ExitCode,
				ended.Message))
		}
	}
	return states
}

// WhyFailed is all that a pod's status says of why it failed.
func WhyFailed(pod *corev1.Pod) string {
	return strings.Join(append([]string{strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)},
		containerStates(pod)...), "; ")
}

func (n *Namespace) describeClaims(ctx context.Context, b *strings.Builder) {
	claims, err := n.Client.ResourceV1().ResourceClaims(n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(b, "claims: %v\n", err)
		return
	}
	for _, claim := range claims.Items {
		allocation := "not allocated"
		if claim.Status.Allocation != nil {
			var results []string
			for _, result := range claim.Status.Allocation.Devices.Results {
				results = append(results, fmt.Sprintf("%s=%s/%s%v", result.Request, result.Pool, result.Device, amounts(
					result.ConsumedCapacity)))
			}
			allocation = strings.Join(results, " ")
		}
		fmt.Fprintf(b, "claim %s (%s), held by %d: %s\n", claim.Name, claim.UID, len(claim.Status.ReservedFor), allocation)
	}
}

func amounts(consumed map[resourceapi.QualifiedName]resource.Quantity) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(consumed)) {
		amount := consumed[name]
		out = append(out, fmt.Sprintf("%s=%s", name, amount.String()))
	}
	return out
}

func (n *Namespace) describeEvents(ctx context.Context, b *strings.Builder) {
	events, err := n.Client.CoreV1().Events(n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(b, "events: %v\n", err)
		return
	}
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning {
			fmt.Fprintf(b, "event of %s %s: %s (%d×): %s\n", event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason,
				event.Count, event.Message)
		}
	}
}

func (n *Namespace) describeNodes(ctx context.Context, b *strings.Builder) {
	nodes, err := n.NodeNames()
	if err != nil {
		fmt.Fprintf(b, "nodes: %v\n", err)
		return
	}
	for _, node := range nodes {
		pool, err := n.pool(ctx, node)
		if err != nil {
			fmt.Fprintf(b, "node %s: %v\n", node, err)
		} else {
			fmt.Fprintf(b, "node %s publishes", node)
			for _, device := range devicesOfPool(pool) {
				fmt.Fprintf(b, " %s", device.Name)
				for _, taint := range device.Taints {
					fmt.Fprintf(b, "(%s:%s)", taint.Key, taint.Effect)
				}
			}
			b.WriteByte('\n')
		}
		n.describeLog(ctx, b, node)
	}
}

// describeLog shows the end of what the node's plugin said since the test began,
// and only where it said something of the test's claims or of an error.
func (n *Namespace) describeLog(ctx context.Context, b *strings.Builder, node string) {
	lines, err := n.PluginLog(ctx, node, metav1.NewTime(n.began))
	if err != nil {
		fmt.Fprintf(b, "  log of the plugin: %v\n", err)
		return
	}
	n.describeLines(b, lines)
}

// describeLines shows the last of the lines that speak of the test's namespace or of an error.
func (n *Namespace) describeLines(b *strings.Builder, lines []string) {
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return !strings.Contains(line, n.Name) && !isErrorLine(line)
	})
	for _, line := range lines[max(0, len(lines)-logTail):] {
		fmt.Fprintf(b, "  %s\n", line)
	}
}

// describeControllers shows which replica of the controller leads since when, and what each
// of them said.
func (n *Namespace) describeControllers(ctx context.Context, b *strings.Builder) {
	if lease, err := n.Lease(ctx); err != nil {
		fmt.Fprintf(b, "the controller's lease: %v\n", err)
	} else {
		fmt.Fprintf(b, "replica %s of the controller leads since %v, renewed %v\n",
			ptr.Deref(lease.Spec.HolderIdentity, "none"), lease.Spec.AcquireTime, lease.Spec.RenewTime)
	}
	pods, err := n.controllers(ctx)
	if err != nil {
		fmt.Fprintf(b, "the controller's pods: %v\n", err)
		return
	}
	for i := range pods {
		pod := &pods[i]
		fmt.Fprintf(b, "controller %s on %s (running: %v), made %v\n", pod.Name, pod.Spec.NodeName, running(pod) == nil,
			pod.CreationTimestamp)
		lines, err := n.logLines(ctx, pod, metav1.NewTime(n.began))
		if err != nil {
			fmt.Fprintf(b, "  %v\n", err)
		}
		n.describeLines(b, lines)
	}
}

// LoggedNoError checks that the plugin of a node has logged something since a time, and no error.
func (c *Cluster) LoggedNoError(t *testing.T, node string, since metav1.Time) {
	t.Helper()
	lines, err := c.PluginLog(t.Context(), node, since)
	if err != nil || len(lines) == 0 {
		t.Errorf("the plugin of node %s has logged %d lines: %v", node, len(lines), err)
	}
	for _, line := range lines {
		if isErrorLine(line) {
			t.Errorf("the plugin of node %s logged: %s", node, line)
		}
	}
}

// isErrorLine reports whether a line of the plugin's log reports an error.
func isErrorLine(line string) bool {
	return strings.HasPrefix(line, "E") || strings.HasPrefix(line, "F") || strings.Contains(line, "panic")
}

// PluginLog returns the lines that the plugins of a node have logged since a time.
func (c *Cluster) PluginLog(ctx context.Context, node string, since metav1.Time) ([]string, error) {
	pods, err := c.Client.CoreV1().Pods(PluginNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: PluginSelector, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return nil, err
	}
	var lines []string
	for i := range pods.Items {
		log, err := c.logLines(ctx, &pods.Items[i], since)
		if err != nil {
			return nil, err
		}
		lines = append(lines, log...)
	}
	return lines, nil
}

func (c *Cluster) logLines(ctx context.Context, pod *corev1.Pod, since metav1.Time) ([]string, error) {
	log, err := c.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
		&corev1.PodLogOptions{SinceTime: &since}).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", pod.Name, err)
	}
	return strings.Split(strings.TrimRight(string(log), "\n"), "\n"), nil
}
