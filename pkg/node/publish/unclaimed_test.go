// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// oldPod runs on the node without a claim. limits are alternately a resource and its
// amount, the GPU is as in the annotation of the first version; "" for none.
func oldPod(name, g string, limits ...string) *corev1.Pod {
	list := corev1.ResourceList{}
	for i := 0; i < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "old", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Limits: list}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if g != "" {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "ALIYUN_COM_GPU_MEM_IDX", g)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "topology.kubernetes.io/gpu-group", g)
	}
	return pod
}

// memory lists what the published devices have of it.
func (b *bench) memoryOf(t *testing.T) string {
	t.Helper()
	var out []string
	for _, slice := range b.published[len(b.published)-1].Pools["n1/gpu"].Slices {
		for _, d := range slice.Devices {
			amount := d.Capacity["memory"].Value
			out = append(out, amount.String())
		}
	}
	return strings.Join(out, " ")
}

// Before the GPUs are read, as after a boot while the NVIDIA driver is being installed, nothing says which of
// them anybody holds: what was said before is neither taken back nor replaced.
func TestNothingIsSaidOfWhoHoldsGPUsThatAreUnread(t *testing.T) {
	reasons := []string{v1alpha1.ReasonHeldWithoutClaim, v1alpha1.ReasonGPUsOfPodsUnknown, v1alpha1.ReasonOtherDriver,
		v1alpha1.ReasonHeldByGoneClaim}
	orphan := state.Record{UID: "u", Namespace: "team", Name: "gone", Grants: []claim.Grant{
		{Mode: mode.Share, Device: "gpu-0-share", GPU: claim.GPU{UUID: "GPU-0"}, Units: 4}}}
	for name, holds := range map[string]func(b *bench){
		"a pod that says which GPU it has": func(b *bench) {
			b.pods = []*corev1.Pod{oldPod("a", "0", "aliyun.com/gpu-mem", "4")}
		},
		"a claim that is gone": func(b *bench) {
			b.records = []state.Record{orphan}
			b.SetOrphans([]orphans.Orphan{{Record: orphan, User: "p"}})
		},
		"nobody": func(*bench) {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			read := b.machine
			b.machine = nil
			b.mode("share")
			holds(b)
			_, ctx := ktesting.NewTestContext(t)
			for _, said := range []string{"", "before"} {
				for _, reason := range reasons {
					if said != "" {
						b.events.current[reason] = said
					}
				}
				_, err := b.reconcile(ctx)
				expect.NoError(t, err)
				for _, reason := range reasons {
					expect.Equal(t, said, b.events.current[reason], "event %s", reason)
				}
			}
			b.SetMachine(read)
			_, err := b.reconcile(ctx)
			expect.NoError(t, err)
			for _, reason := range reasons {
				if got := b.events.current[reason]; got == "before" {
					t.Errorf("event %s: %q although the GPUs are read", reason, got)
				}
			}
		})
	}
}

func TestWhatPodsWithoutClaimLeaveIsPublished(t *testing.T) {
	b := newBench(t)
	b.mode("share")
	b.unread = true
	_, ctx := ktesting.NewTestContext(t)
	if settled, err := b.reconcile(ctx); err != nil || !settled || len(b.published) > 0 {
		t.Fatalf("before the pods are known: settled %t, %v, published %v", settled, err, b.published)
	}
	b.unread = false
	b.pods = []*corev1.Pod{oldPod("a", "0", "aliyun.com/gpu-mem", "4"), oldPod("b", "1", "aliyun.com/gpu-mem", "15")}
	b.reconciled(t, true, "gpu-0-share gpu-1-share!")
	expect.Equal(t, "11Gi 0", b.memoryOf(t), "memory")
	expect.Says(t, b.events.current[v1alpha1.ReasonHeldWithoutClaim], "GPU 0: 4 of 15 GiB (old/a); "+
		"GPU 1: 15 of 15 GiB (old/b)")
	b.pods[1].Status.Phase = corev1.PodSucceeded
	b.reconciled(t, true, shares)
	b.pods = nil
	b.reconciled(t, true, shares)
	expect.Equal(t, "15Gi 15Gi", b.memoryOf(t), "memory")
	expect.Equal(t, "", b.events.current[v1alpha1.ReasonHeldWithoutClaim], "event")
}

func TestPodOfWhichTheGPUIsNotKnown(t *testing.T) {
	b := newBench(t)
	b.mode("share")
	b.pods = []*corev1.Pod{oldPod("lost", "7", "aliyun.com/gpu-mem", "4")}
	b.reconciled(t, false, shares)
	expect.Equal(t, "11Gi 11Gi", b.memoryOf(t), "memory")
	expect.Says(t, b.events.current[v1alpha1.ReasonGPUsOfPodsUnknown], "pod old/lost: ", "no GPU 7")
	b.pods = nil
	b.reconciled(t, true, shares)
	expect.Equal(t, "", b.events.current[v1alpha1.ReasonGPUsOfPodsUnknown], "event")
}

// Whoever holds a share holds the GPU in the mode that it was given in.
func TestGPUsOfPodsWithoutClaimInOtherModes(t *testing.T) {
	memory, compute := oldPod("m", "0", "aliyun.com/gpu-mem", "4"),
		oldPod("c", "1", "aliyun.com/gpu-mem", "4", "aliyun.com/gpu-core.percentage", "96")
	for label, want := range map[string]string{
		"share":    "gpu-0-share gpu-1-share!",
		"default":  "gpu-0! gpu-1!",
		"topology": "gpu-0-topology! gpu-1-topology!",
	} {
		b := newBench(t)
		b.mode(label)
		b.pods = []*corev1.Pod{memory, compute}
		b.reconciled(t, true, want)
	}
	b := newBench(t)
	b.mode("default")
	b.pods = []*corev1.Pod{oldPod("w", "1", "aliyun.com/gpu", "1")}
	b.reconciled(t, true, "gpu-0 gpu-1!")
	// Its GPU stays closed when the mode changes; the others are offered.
	b.mode("share")
	b.switched(t, wholeClosed, "gpu-0-share gpu-1-share!")
}

// listed are pods that are not watched, with what the kubelet lists of them.
type listed struct {
	*bench
	containers map[deviceplugin.Container]deviceplugin.Devices
}

func (l listed) Observe(_ context.Context, m *gpu.Machine) (held.Reserved, error) {
	return deviceplugin.Listed(deviceplugin.Node{GPUs: m.GPUs,
		Kubelet: deviceplugin.Kubelet{Containers: l.containers}}), nil
}

// Where pods are not watched, nobody tells that one has ended.
func TestPodsThatOnlyTheKubeletListsAreAskedForAgain(t *testing.T) {
	b := newBench(t)
	b.mode("default")
	container := deviceplugin.Container{Namespace: "old", Pod: "p", Name: "c"}
	kubelet := listed{b, map[deviceplugin.Container]deviceplugin.Devices{
		container: {Resources: []corev1.ResourceName{"nvidia.com/gpu"}, IDs: []string{"GPU-0"}}}}
	b.Pods = kubelet
	b.reconciled(t, false, "gpu-0! gpu-1")
	delete(kubelet.containers, container)
	b.reconciled(t, true, whole)
}

func TestSpreadCountsPodsWithoutClaim(t *testing.T) {
	b := newBench(t)
	b.label(map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "spread"})
	b.pods = []*corev1.Pod{oldPod("a", "0", "aliyun.com/gpu-mem", "4")}
	b.reconciled(t, true, "gpu-1-share gpu-0-share")
}
