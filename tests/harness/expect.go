// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Publishes waits until a node publishes devices with these names and taints, as
// in "gpu-0-share" and "gpu-0-share key:effect", in this order: it is the one in which the
// scheduler takes them. Where some have taints the order is open: those that take no claims
// come after others, as soon as the node has another reason to write.
func (c *Cluster) Publishes(t *testing.T, node string, want ...string) {
	t.Helper()
	if slices.ContainsFunc(want, func(device string) bool { return strings.Contains(device, " ") }) {
		c.PublishesInAnyOrder(t, node, want...)
		return
	}
	c.publishes(t, node, want, func(got []string) []string { return got })
}

// PublishesInAnyOrder is Publishes where GPUs are used: the order of their devices follows
// what is granted, after a while.
func (c *Cluster) PublishesInAnyOrder(t *testing.T, node string, want ...string) {
	t.Helper()
	c.publishes(t, node, slices.Sorted(slices.Values(want)),
		func(got []string) []string { return slices.Sorted(slices.Values(got)) })
}

func (c *Cluster) publishes(t *testing.T, node string, want []string, ordered func(got []string) []string) {
	t.Helper()
	c.Devices(t, node, fmt.Sprintf("are %q", want), func(devices []resourceapi.Device) error {
		var got []string
		for _, device := range devices {
			text := device.Name
			for _, taint := range device.Taints {
				text += fmt.Sprintf(" %s:%s", taint.Key, taint.Effect)
			}
			got = append(got, text)
		}
		return expect.Diff(want, ordered(got))
	})
}

// DeviceNames are the names of the devices of n GPUs.
func DeviceNames(n int, format string) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf(format, i))
	}
	return names
}

// DevicesIn names the devices of a node with four GPUs in a mode.
func DevicesIn(mode string) []string { return DeviceNames(4, "gpu-%d-"+mode) }

// SeesItsGPUs checks that a container has the device nodes of the granted GPUs
// and of no others.
func (n *Namespace) SeesItsGPUs(t *testing.T, pod, container string, grants []Grant) {
	t.Helper()
	want := map[string]bool{}
	for _, grant := range grants {
		want[grant.GPU.DevicePath()] = true
	}
	got := map[string]bool{}
	for _, path := range n.GPUNodes(t, pod, container) {
		got[path] = true
	}
	expect.Equal(t, want, got, "device nodes of GPUs in %s/%s", pod, container)
}

// KnowsItsGPUs checks that a container is told the UUIDs of its GPUs, which are whole ones, and of no others.
func (n *Namespace) KnowsItsGPUs(t *testing.T, pod, container string, grants []Grant) {
	t.Helper()
	want := map[string]string{}
	for _, grant := range grants {
		want[fmt.Sprint("GPU_ALIYUN_COM_UUID_", grant.GPU.Index)] = grant.GPU.UUID
	}
	expect.Equal(t, want, n.env(t, pod, container, ownVariable), "%s/%s is told of its GPUs", pod, container)
}

// HasEnv checks what a container finds in its environment of its GPUs, see GPUEnv.
func (n *Namespace) HasEnv(t *testing.T, pod, container string, want map[string]string) {
	t.Helper()
	expect.Equal(t, want, n.GPUEnv(t, pod, container), "environment of %s/%s", pod, container)
}

// LegacyEnv is what a container on shared GPUs finds in its environment, as on ACK:
// its units per GPU, the GPU's units, its GPUs, and the claim's units.
func LegacyEnv(container, g, claim int, indices ...int64) map[string]string {
	var index []string
	for _, i := range indices {
		index = append(index, strconv.FormatInt(i, 10))
	}
	return map[string]string{
		"NVIDIA_VISIBLE_DEVICES":       "void",
		"ALIYUN_COM_GPU_MEM_CONTAINER": strconv.Itoa(container),
		"ALIYUN_COM_GPU_MEM_DEV":       strconv.Itoa(g),
		"ALIYUN_COM_GPU_MEM_UNIT":      "GiB",
		"ALIYUN_COM_GPU_MEM_IDX":       strings.Join(index, ","),
		"ALIYUN_COM_GPU_MEM_POD":       strconv.Itoa(claim),
	}
}

// WithEnv is an environment with more variables.
func WithEnv(env map[string]string, pairs ...string) map[string]string {
	env = maps.Clone(env)
	for i := 0; i+1 < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return env
}

// HasUnits checks what the pods of the namespace hold of each GPU of a node, in GiB.
func (n *Namespace) HasUnits(t *testing.T, node string, want ...int64) {
	t.Helper()
	expect.Equal(t, want, n.UnitsByGPU(t, node), "units granted of each GPU of node %s", node)
}

// Containers maps the namespace's pods to the ids of their containers.
func (n *Namespace) Containers(t *testing.T) map[string]string {
	t.Helper()
	pods, err := n.Client.CoreV1().Pods(n.Name).List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	ids := map[string]string{}
	for _, pod := range pods.Items {
		if len(pod.Status.ContainerStatuses) > 0 {
			ids[pod.Name] = pod.Status.ContainerStatuses[0].ContainerID
		}
	}
	return ids
}

// KeptRunning checks that containers are still the same and run.
func (n *Namespace) KeptRunning(t *testing.T, before map[string]string) {
	t.Helper()
	now := n.Containers(t)
	for name, id := range before {
		if now[name] != id {
			t.Errorf("the container of pod %s was %s and is %s", name, id, now[name])
		}
		n.WaitRunning(t, name)
	}
}

// CheckRestarted returns nil if the container of a pod runs and is another than before.
func (n *Namespace) CheckRestarted(ctx context.Context, name, before string) error {
	pod, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("it is %s and has no container yet", pod.Status.Phase)
	}
	status := pod.Status.ContainerStatuses[0]
	if status.State.Running == nil || status.ContainerID == before {
		return fmt.Errorf("it is %s, container %s after %d restarts: %+v", pod.Status.Phase, status.ContainerID,
			status.RestartCount, status.State)
	}
	return nil
}

// PodsOf waits until so many pods with a label run and no other is there, and returns
// their names.
func (n *Namespace) PodsOf(t *testing.T, app string, want int) []string {
	t.Helper()
	var names []string
	Eventually(t, fmt.Sprintf("%d pods of %s to run", want, app), func(ctx context.Context) error {
		pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		if len(pods.Items) != want {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		names = nil
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
			names = append(names, pod.Name)
		}
		return nil
	})
	return names
}

// ShowsAmounts waits until a node shows these amounts in both parts of its status.
func (c *Cluster) ShowsAmounts(t *testing.T, node, want string) {
	t.Helper()
	Becomes(t, c.Client.CoreV1().Nodes(), node, fmt.Sprintf("node %s to show %s", node, want), func(n *corev1.Node) error {
		capacity, allocatable := amountsShown(n.Status.Capacity), amountsShown(n.Status.Allocatable)
		if capacity != want || allocatable != want {
			return fmt.Errorf("capacity is %s, allocatable %s", capacity, allocatable)
		}
		if cpu := n.Status.Capacity.Cpu(); cpu.IsZero() {
			return fmt.Errorf("its own capacity is gone")
		}
		return nil
	})
}

// amountsShown are gpu-mem, gpu-count, gpu-core.percentage and gpu, with a dash for
// what is not there.
func amountsShown(list corev1.ResourceList) string {
	var out []string
	for _, name := range []corev1.ResourceName{"aliyun.com/gpu-mem", "aliyun.com/gpu-count",
		"aliyun.com/gpu-core.percentage", "aliyun.com/gpu"} {
		text := "-"
		if amount, ok := list[name]; ok {
			text = amount.String()
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// The labels that tell of a node's GPUs.
const (
	NameLabel   = "aliyun.accelerator/nvidia_name"
	MemoryLabel = "aliyun.accelerator/nvidia_mem"
	CountLabel  = "aliyun.accelerator/nvidia_count"
)

// IsLabelled waits until a node has the labels of its GPUs: name, memory, count.
func (c *Cluster) IsLabelled(t *testing.T, node, want string) {
	t.Helper()
	what := fmt.Sprintf("node %s to be labelled %s", node, want)
	Becomes(t, c.Client.CoreV1().Nodes(), node, what, func(n *corev1.Node) error {
		if got := fmt.Sprintf("%s %s %s", n.Labels[NameLabel], n.Labels[MemoryLabel], n.Labels[CountLabel]); got != want {
			return fmt.Errorf("it is labelled %s", got)
		}
		return nil
	})
}

// IsTold waits until kubectl describe shows, in the Events of a pod, why it waits.
func (n *Namespace) IsTold(t *testing.T, pod string, texts ...string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("kubectl describe pod %s to show %q", pod, texts), func(context.Context) error {
		output, err := n.Kubectl(t, "describe", "pod", pod)
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		_, events, _ := strings.Cut(output, "\nEvents:")
		for line := range strings.Lines(events) {
			if strings.Contains(line, "GPUClaimWaiting") && ContainsAll(line, texts) {
				return nil
			}
		}
		return fmt.Errorf("its Events are:%s", events)
	})
}

// ContainsAll reports whether a text has all of the parts.
func ContainsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// Leader is the name of the controller's pod that works.
func (c *Cluster) Leader(t *testing.T) string {
	t.Helper()
	lease, err := c.Lease(t.Context())
	expect.NoError(t, err)
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// CheckNothingOn says what a node keeps of any claim.
func (c *Cluster) CheckNothingOn(node string) error {
	records, err := c.Records(node)
	if err != nil {
		return err
	}
	specs, err := c.CDIClaims(node)
	if err != nil {
		return err
	}
	var left []error
	for _, record := range records {
		left = append(left, fmt.Errorf("a state file of claim %s/%s is left on node %s", record.Namespace, record.Name, node))
	}
	for _, uid := range specs {
		left = append(left, fmt.Errorf("a CDI spec of claim %s is left on node %s", uid, node))
	}
	return errors.Join(left...)
}

// Meanwhile does some things over and over, until the returned function is called
// or the test ends. None may fail.
func Meanwhile(t *testing.T, things ...func(ctx context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, thing := range things {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := thing(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("round %d: %v", i, err)
					return
				}
			}
		})
	}
	end = func() { cancel(); wg.Wait() }
	t.Cleanup(end)
	return end
}
