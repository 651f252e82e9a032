// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Template makes a ResourceClaimTemplate.
func (n *Namespace) Template(t *testing.T, name string, spec resourceapi.ResourceClaimSpec) {
	t.Helper()
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
	Make(t, n.Client.ResourceV1().ResourceClaimTemplates(n.Name), template)
}

// Claim makes a ResourceClaim.
func (n *Namespace) Claim(t *testing.T, name string, spec resourceapi.ResourceClaimSpec) {
	t.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	Make(t, n.Client.ResourceV1().ResourceClaims(n.Name), claim)
}

// Create makes pods, in order.
func (n *Namespace) Create(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		Make(t, n.Client.CoreV1().Pods(n.Name), pod)
	}
}

// Run makes pods and waits until all of them run.
func (n *Namespace) Run(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	n.Create(t, pods...)
	for _, pod := range pods {
		n.WaitRunning(t, pod.Name)
	}
}

// Get returns a pod.
func (n *Namespace) Get(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return Get(t, n.Client.CoreV1().Pods(n.Name), name)
}

// WaitPod waits until a condition holds of a pod, as in WaitPod(t, "a", "to be bound", isBound).
func (n *Namespace) WaitPod(t *testing.T, name, what string, condition func(pod *corev1.Pod) error) {
	t.Helper()
	Becomes(t, n.Client.CoreV1().Pods(n.Name), name, "pod "+name+" "+what, condition)
}

// WaitBound waits until a pod is bound to a node.
func (n *Namespace) WaitBound(t *testing.T, name string) {
	t.Helper()
	n.WaitPod(t, name, "to be bound to a node", func(pod *corev1.Pod) error {
		if pod.Spec.NodeName == "" {
			return errors.New("it is not")
		}
		return nil
	})
}

// WaitGone waits until a pod is gone.
func (n *Namespace) WaitGone(t *testing.T, name string) {
	t.Helper()
	WaitNone(t, n.Client.CoreV1().Pods(n.Name), name, "pod "+name+" to be gone")
}

// WaitRunning waits until all containers of a pod run, and fails at once where
// the pod has ended.
func (n *Namespace) WaitRunning(t *testing.T, name string) {
	t.Helper()
	var ended error
	n.WaitPod(t, name, "to run", func(pod *corev1.Pod) error {
		if phase := pod.Status.Phase; phase == corev1.PodFailed || phase == corev1.PodSucceeded {
			ended = fmt.Errorf("pod %s has ended (%s): %s", name, phase, pod.Status.Message)
			return nil
		}
		return running(pod)
	})
	if ended != nil {
		t.Fatal(ended)
	}
}

func running(pod *corev1.Pod) error {
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("it is %s %s", pod.Status.Phase, unscheduledBecause(pod))
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running == nil {
			return fmt.Errorf("container %s does not run", status.Name)
		}
	}
	return nil
}

// WaitUnschedulable waits until the scheduler has found no place for a pod for a
// reason that holds the text, and returns the whole reason.
func (n *Namespace) WaitUnschedulable(t *testing.T, name, text string) string {
	t.Helper()
	var reason string
	n.WaitPod(t, name, fmt.Sprintf("to be refused by the scheduler with %q", text), func(pod *corev1.Pod) error {
		reason = unscheduledBecause(pod)
		if pod.Status.Phase != corev1.PodPending || !strings.Contains(reason, text) {
			return fmt.Errorf("it is %s %s", pod.Status.Phase, reason)
		}
		return nil
	})
	return reason
}

func unscheduledBecause(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return condition.Message
		}
	}
	return ""
}

// WaitPodEvent waits for an Event of a pod with a reason and a text.
func (n *Namespace) WaitPodEvent(t *testing.T, name, reason, text string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("an Event %s of pod %s with %q", reason, name, text), func(ctx context.Context) error {
		return n.CheckPodEvent(ctx, name, reason, text)
	})
}

// CheckPodEvent returns nil if a pod has an Event with a reason and a text.
func (n *Namespace) CheckPodEvent(ctx context.Context, name, reason, text string) error {
	events, err := n.Client.CoreV1().Events(n.Name).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,involvedObject.name=" + name})
	if err != nil {
		return err
	}
	return hasEvent(events.Items, reason, text)
}

func hasEvent(events []corev1.Event, reason, text string) error {
	var messages []string
	for _, event := range events {
		if event.Reason != reason {
			continue
		}
		if strings.Contains(event.Message, text) {
			return nil
		}
		messages = append(messages, event.Message)
	}
	return fmt.Errorf("%d Events of that reason: %q", len(messages), messages)
}

// NotYetAuthorized reports whether the Event is that the kubelet itself may not read a claim
// yet. The API server's node authorizer follows pods and claims with a delay; the driver is
// not asked then, and the controller has the kubelet try again (see
// deployments/options/node-reads-claims).
func NotYetAuthorized(event *corev1.Event) bool {
	return event.Reason == "FailedPrepareDynamicResources" && strings.Contains(event.Message, `User "system:node:`) &&
		strings.Contains(event.Message, `cannot get resource "resourceclaims"`)
}

// Delete deletes pods and waits until they are gone, and the claims that were made for them:
// until then the scheduler takes what those were allocated for taken.
func (n *Namespace) Delete(t *testing.T, pods ...string) {
	t.Helper()
	claims := n.claimsFor(t, pods)
	for _, pod := range pods {
		err := n.Client.CoreV1().Pods(n.Name).Delete(t.Context(), pod, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("delete pod %s: %v", pod, err)
		}
	}
	for _, pod := range pods {
		n.WaitGone(t, pod)
	}
	for name, uid := range claims {
		Eventually(t, "claim "+name+" of a pod that is gone to be gone", func(ctx context.Context) error {
			claim, err := n.Client.ResourceV1().ResourceClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && claim.UID != uid {
				return nil
			}
			return errors.Join(errors.New("it is there"), err)
		})
	}
}

// claimsFor are the claims that were made for pods, by name.
func (n *Namespace) claimsFor(t *testing.T, pods []string) map[string]types.UID {
	t.Helper()
	list, err := n.Client.ResourceV1().ResourceClaims(n.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	claims := map[string]types.UID{}
	for i := range list.Items {
		owner := metav1.GetControllerOf(&list.Items[i])
		if owner != nil && owner.Kind == "Pod" && slices.Contains(pods, owner.Name) {
			claims[list.Items[i].Name] = list.Items[i].UID
		}
	}
	return claims
}

// WaitNoClaims waits until the namespace has no claims.
func (n *Namespace) WaitNoClaims(t *testing.T) {
	t.Helper()
	Eventually(t, "the claims of namespace "+n.Name+" to be gone", func(ctx context.Context) error {
		claims, err := n.Client.ResourceV1().ResourceClaims(n.Name).List(ctx, metav1.ListOptions{})
		if err == nil && len(claims.Items) > 0 {
			err = fmt.Errorf("there are %d", len(claims.Items))
		}
		return err
	})
}

// HoldsNothing checks that no claim whose name has the prefix is allocated.
func (n *Namespace) HoldsNothing(t *testing.T, prefix string) {
	t.Helper()
	claims, err := n.Client.ResourceV1().ResourceClaims(n.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	for _, claim := range claims.Items {
		if strings.HasPrefix(claim.Name, prefix) && claim.Status.Allocation != nil {
			t.Errorf("claim %s of what waits is allocated", claim.Name)
		}
	}
}

// Exec runs the probe in a container, as in Exec(t, "a", "main", "stat", "/dev/nvidia0").
func (n *Namespace) Exec(t *testing.T, pod, container string, arguments ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := n.Stream(t.Context(), pod, container, append([]string{"/gpu-probe"}, arguments...),
		remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return "", fmt.Errorf("gpu-probe %s in %s/%s: %w\n%s%s", strings.Join(arguments, " "), pod, container, err,
			stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// Stream runs a program in a container until it ends.
func (n *Namespace) Stream(ctx context.Context, pod, container string, command []string,
	streams remotecommand.StreamOptions) error {
	request := n.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(n.Name).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: streams.Stdin != nil,
			Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(n.Config, "POST", request.URL())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, streams)
}

// GPUEnv is the part of a container's environment that says what it may use of
// which GPUs.
func (n *Namespace) GPUEnv(t *testing.T, pod, container string) map[string]string {
	t.Helper()
	return n.env(t, pod, container, gpuVariable)
}

func (n *Namespace) env(t *testing.T, pod, container string, names *regexp.Regexp) map[string]string {
	t.Helper()
	output, err := n.Exec(t, pod, container, "env")
	expect.NoError(t, err)
	env := map[string]string{}
	for line := range strings.Lines(output) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if names.MatchString(name) {
			env[name] = value
		}
	}
	return env
}

var (
	gpuVariable = regexp.MustCompile(`^(NVIDIA_VISIBLE_DEVICES$|CUDA_|ALIYUN_|CGPU_)`)
	ownVariable = regexp.MustCompile(`^GPU_ALIYUN_COM_UUID_`)
	gpuNode     = regexp.MustCompile(`^/dev/nvidia[0-9]+$`)
)

// GPUNodes are the device nodes of GPUs in a container, in order. The container
// may open each of them for reading and writing.
func (n *Namespace) GPUNodes(t *testing.T, pod, container string) []string {
	t.Helper()
	output, err := n.Exec(t, pod, container, "devices")
	expect.NoError(t, err)
	var paths []string
	for line := range strings.Lines(output) {
		if path, _, _ := strings.Cut(line, " "); gpuNode.MatchString(path) {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		// Behind the node of a simulated GPU is no driver: who may open it is
		// told that there is no such device.
		if _, err := n.Exec(t, pod, container, "open", path); err != nil &&
			!strings.Contains(err.Error(), syscall.ENXIO.Error()) {
			t.Errorf("the GPU's device node is there, but: %v", err)
		}
	}
	return paths
}
