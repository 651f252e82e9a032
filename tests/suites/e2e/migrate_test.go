// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// leftToDevicePlugins is the label of namespaces whose pods the policies let through
// as they are.
const leftToDevicePlugins = "e2e.gpu.aliyun.com/device-plugin"

// oldNamespace makes a namespace for pods as ACK's scheduler binds them.
func oldNamespace(t *testing.T) *harness.Namespace {
	t.Helper()
	t.Cleanup(func() {
		if err := refuse(harness.Context(t), "null"); err != nil {
			t.Errorf("put the policy's binding back: %v", err)
		}
	})
	return cluster.Namespace(t, func(n *corev1.Namespace) {
		n.Labels = map[string]string{leftToDevicePlugins: "true", v1alpha1.LabelLegacy: "false"}
	})
}

// optedOut makes a namespace one whose pods the policies leave alone.
func optedOut(n *corev1.Namespace) { n.Labels = map[string]string{v1alpha1.LabelLegacy: "false"} }

// refuse sets which pods the policy that refuses looks at.
func refuse(ctx context.Context, matchResources string) error {
	patch := fmt.Sprintf(`{"spec":{"matchResources":%s}}`, matchResources)
	_, err := cluster.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().
		Patch(ctx, "gpushare-legacy-refuse", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// runOld runs pods of an oldNamespace. They are let through for a moment only: as
// long as the policy leaves pods out, no node shows amounts, those of other tests
// included: what reads amounts has to wait for them.
func runOld(t *testing.T, ns *harness.Namespace, pods ...*corev1.Pod) {
	t.Helper()
	selector := fmt.Sprintf(`{"namespaceSelector":{"matchExpressions":[{"key":%q,"operator":"DoesNotExist"}]}}`,
		leftToDevicePlugins)
	expect.NoError(t, refuse(t.Context(), selector))
	harness.Eventually(t, "the policy to let pods through", func(ctx context.Context) error {
		_, err := ns.Admitted(ctx, harness.Asking("mem 3"))
		return err
	})
	ns.Create(t, pods...)
	expect.NoError(t, refuse(t.Context(), "null"))
	for _, pod := range pods {
		ns.WaitRunning(t, pod.Name)
	}
}

// offersMemory waits until the devices of a node have so much memory in GiB, in the
// order of the GPUs; a bang stands for a GPU that is held without a claim.
func offersMemory(t *testing.T, node, want string) {
	t.Helper()
	cluster.Devices(t, node, "offer "+want, func(published []resourceapi.Device) error {
		var got []string
		for _, d := range byIndex(published) {
			memory := d.Capacity[v1alpha1.CapMemory].Value
			text := fmt.Sprint(memory.Value() / devices.GiB)
			if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == v1alpha1.TaintHeld }) {
				text += "!"
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != want {
			return fmt.Errorf("they offer %s", strings.Join(got, " "))
		}
		return nil
	})
}

// byIndex are the devices in the order of their GPUs, however they are placed.
func byIndex(published []resourceapi.Device) []resourceapi.Device {
	index := func(d resourceapi.Device) int64 { return ptr.Deref(d.Attributes[v1alpha1.AttrIndex].IntValue, -1) }
	return slices.SortedFunc(slices.Values(published),
		func(a, b resourceapi.Device) int { return int(index(a) - index(b)) })
}

// neverOverGranted looks at what is promised of a node's GPUs.
func neverOverGranted(node string, gpus []gpu.GPU) func(context.Context) error {
	const interval = 50 * time.Millisecond
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
			return cluster.CheckPromised(ctx, node, gpus)
		}
	}
}

// gpusOfNode are the GPUs that a node publishes.
func gpusOfNode(t *testing.T, node string, want int) []gpu.GPU {
	t.Helper()
	var out []gpu.GPU
	for _, d := range cluster.Devices(t, node, fmt.Sprintf("are %d", want), func(devices []resourceapi.Device) error {
		if len(devices) != want {
			return fmt.Errorf("%d devices", len(devices))
		}
		return nil
	}) {
		out = append(out, gpu.GPU{
			Index: int(*d.Attributes[v1alpha1.AttrIndex].IntValue), UUID: *d.Attributes[v1alpha1.AttrUUID].StringValue,
			MemoryMiB: *d.Attributes[v1alpha1.AttrMemoryMiB].IntValue,
		})
	}
	return out
}

func TestMigrationInPlace(t *testing.T) {
	cluster.First(t)
	t.Parallel()
	cluster.Whole(t, "old")
	cluster.FreshPlugin(t, "old")
	old, ns := oldNamespace(t), cluster.Namespace(t)
	t.Run("shares", func(t *testing.T) { migrateShares(t, old, ns) })
	t.Run("compute", func(t *testing.T) { migrateCompute(t, old, ns) })
}

// Pods of the old device plugin run on; new ones fill just what they leave.
func migrateShares(t *testing.T, old, ns *harness.Namespace) {
	const node = "old"
	harness.Meanwhile(t, neverOverGranted(node, gpusOfNode(t, node, 4)))
	offersMemory(t, node, "15 15 15 15")
	began := time.Now()
	// Other than the amount that is shown, which the kubelet would not write again.
	stop := cluster.DevicePlugin(t, node, "aliyun.com/gpu-mem", 48)
	cluster.WaitNodeEvent(t, node, began, "GPUModeNotServed", "a device plugin serves aliyun.com/gpu-mem here")
	cluster.Publishes(t, node)
	runOld(t, old,
		harness.Bound(harness.Asking("mem 6"), "one", node, ack.AnnotationMemory, `{"0":{"0":6}}`),
		harness.Bound(harness.Asking("mem 1", "mem 7"), "two", node, ack.AnnotationMemory, `{"0":{"1":1},"1":{"1":7}}`),
		harness.Bound(harness.Asking("mem 15"), "first-version", node, ack.AnnotationV1Index, "2"),
	)

	stop()
	cluster.WaitNodeEvent(t, node, began, "GPUModeNotServed", "until a moment ago")
	offersMemory(t, node, "9 7 0! 15")
	cluster.WaitNodeEvent(t, node, began, "GPUHeldWithoutClaim", "GPU 0: 6 of 15 GiB ("+old.Name+"/one)")
	fill := []*corev1.Pod{harness.GoingTo(harness.Asking("mem 9"), "nine", node),
		harness.GoingTo(harness.Asking("mem 7"), "seven", node), harness.GoingTo(harness.Asking("mem 15"), "fifteen", node)}
	for i, want := range []int64{0, 1, 3} {
		ns.Run(t, fill[i])
		if grants := ns.Granted(t, fill[i].Name); grants[0].GPU.Index != want {
			t.Errorf("pod %s is on GPU %d, want the one that it fills, %d", fill[i].Name, grants[0].GPU.Index, want)
		}
	}
	ns.Create(t, harness.GoingTo(harness.Asking("mem 6"), "waits", node))
	ns.WaitUnschedulable(t, "waits", "")
	ns.WaitPodEvent(t, "waits", "GPUClaimWaiting", "taken or too full")

	// Whatever comes to an end in between, what is promised stays so.
	cluster.KillPlugin(t, node)()
	cluster.Tool(t, "node", "restart-kubelet", node)
	for _, pod := range []string{"one", "two", "first-version"} {
		old.WaitRunning(t, pod)
	}
	offersMemory(t, node, "9 7 0! 15")
	// Tools read what the GPUs have, as before.
	cluster.ShowsAmounts(t, node, "60 4 0 0")

	old.Delete(t, "one")
	ns.WaitRunning(t, "waits")
	if grants := ns.Granted(t, "waits"); grants[0].GPU.Index != 0 {
		t.Errorf("the pod that waited is on GPU %d, and GPU 0 came back", grants[0].GPU.Index)
	}
	offersMemory(t, node, "15 7 0! 15")
	old.Delete(t, "first-version", "two")
	offersMemory(t, node, "15 15 15 15")
	ns.Run(t, harness.GoingTo(harness.Asking("mem 15"), "last", node))
	ns.Delete(t, "nine", "seven", "fifteen", "waits", "last")
}

// Those that were promised compute and those that were not share no GPU.
func migrateCompute(t *testing.T, old, ns *harness.Namespace) {
	const node = "old"
	setMode := cluster.Label(t, node, modeLabel)
	offersMemory(t, node, "15 15 15 15")
	began := time.Now()
	// A kubelet that knows the resources takes new pods only while they are served.
	stopMemory := cluster.DevicePlugin(t, node, "aliyun.com/gpu-mem", 48)
	stopCores := cluster.DevicePlugin(t, node, "aliyun.com/gpu-core.percentage", 400)
	cluster.Publishes(t, node)
	cluster.WaitNodeEvent(t, node, began, "GPUModeNotServed", "a device plugin serves aliyun.com/gpu-mem, "+
		"aliyun.com/gpu-core.percentage here")
	runOld(t, old,
		harness.Bound(harness.Asking("mem 4"), "unknown", node, ack.AnnotationMemory, `{"0":{"9":4}}`),
		harness.Bound(harness.Asking("mem 6 core 60"), "compute", node, ack.AnnotationMemory, `{"0":{"0":6}}`,
			ack.AnnotationCores, `{"0":{"0":60}}`),
		harness.Bound(harness.Asking("mem 3"), "memory", node, ack.AnnotationMemory, `{"0":{"1":3}}`),
	)
	stopMemory()
	stopCores()
	// Of a pod that may be on any GPU, what it asks for counts on each.
	offersMemory(t, node, "5! 8 11 11")
	cluster.WaitNodeEvent(t, node, began, "GPUCardsOfPodsUnknown", old.Name+"/unknown")
	old.Delete(t, "unknown")
	offersMemory(t, node, "9! 12 15 15")
	setMode("core_mem")
	offersMemory(t, node, "9 12! 15 15")
	ns.Run(t, harness.GoingTo(harness.Asking("mem 9 core 40"), "rest", node))
	if grants := ns.Granted(t, "rest"); grants[0].GPU.Index != 0 || grants[0].Units != 9 {
		t.Errorf("granted %+v, want what is left of GPU 0", grants)
	}
	ns.Delete(t, "rest")
	setMode("share")
	offersMemory(t, node, "9! 12 15 15")
	old.Delete(t, "compute", "memory")
	offersMemory(t, node, "15 15 15 15")
	// The node is to show its own amounts again, for whoever uses it next.
	cluster.Tool(t, "node", "restart-kubelet", node)
	cluster.ShowsAmounts(t, node, "60 4 0 0")
}

// The kubelet knows the GPUs of pods of NVIDIA's device plugin.
func TestMigrationOfWholeGPUs(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "whole")
	old, ns := cluster.Namespace(t, optedOut), cluster.Namespace(t)
	const node, whole = "whole", corev1.ResourceName("nvidia.com/gpu")
	gpus := gpusOfNode(t, node, 8)
	var uuids, names []string
	for _, g := range gpus {
		uuids = append(uuids, g.UUID)
		names = append(names, fmt.Sprintf("gpu-%d", g.Index))
	}
	began := time.Now()
	stop := cluster.DevicePluginOf(t, node, string(whole), uuids...)
	cluster.WaitNodeEvent(t, node, began, "GPUModeNotServed", "a device plugin serves nvidia.com/gpu here")
	cluster.Publishes(t, node)
	old.Run(t, harness.Bound(harness.Asking("nvidia.com/gpu 1"), "trains", node))
	stop()
	heldWhole := func() (held string) {
		t.Helper()
		cluster.Devices(t, node, "are all but one open", func(devices []resourceapi.Device) error {
			var got, closed []string
			for _, d := range devices {
				got = append(got, d.Name)
				if len(d.Taints) == 1 && d.Taints[0].Key == v1alpha1.TaintHeld {
					closed = append(closed, d.Name)
				}
			}
			if diff := expect.Diff(names, got); diff != nil || len(closed) != 1 {
				return fmt.Errorf("closed are %q, devices %v", closed, diff)
			}
			held = closed[0]
			return nil
		})
		return held
	}
	held := heldWhole()
	inspectShowsPodWithoutClaim(t, node, old.Name, "trains")
	cluster.Tool(t, "node", "restart-kubelet", node)
	old.WaitRunning(t, "trains")
	if again := heldWhole(); again != held {
		t.Errorf("the pod holds %s after the kubelet's restart, %s before", again, held)
	}

	news := harness.Pods(7, "new-", node, harness.Limit(whole, "1"))
	ns.Run(t, news...)
	ns.Create(t, harness.Changed(news[0].DeepCopy(), func(p *corev1.Pod) { p.Name, p.ResourceVersion = "eighth", "" }))
	ns.WaitUnschedulable(t, "eighth", "")
	old.Delete(t, "trains")
	ns.WaitRunning(t, "eighth")
	if got := fmt.Sprintf("gpu-%d", ns.Granted(t, "eighth")[0].GPU.Index); got != held {
		t.Errorf("the last pod got %s, want %s, which came back", got, held)
	}
	ns.Delete(t, append([]string{"eighth"}, podNames(news)...)...)

	// docs/troubleshooting.md: or the kubelet takes the resource for the plugin's for good.
	expect.NoError(t, os.Remove(cluster.NodeFile(node, "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")))
	cluster.Tool(t, "node", "restart-kubelet", node)
	ns.Run(t, harness.Changed(news[0].DeepCopy(), func(p *corev1.Pod) { p.Name, p.ResourceVersion = "afterwards", "" }))
}

func podNames(pods []*corev1.Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}
