// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// recordOf is the record of a claim that has these grants.
func recordOf(name string, grants ...claim.Grant) state.Record {
	return state.Record{UID: types.UID(name), Namespace: "team", Name: name, Grants: grants}
}

// grantOf is one of the device, which was the GPU with the UUID.
func grantOf(m mode.Mode, device string, index int, uuid string) claim.Grant {
	return claim.Grant{Mode: m, Device: device, GPU: claim.GPU{Index: index, UUID: uuid, MemoryMiB: 16130}}
}

// shareOf is a share of so many units of the GPU with the index.
func shareOf(index int, units int64) claim.Grant {
	g := grantOf(mode.Share, fmt.Sprintf("gpu-%d-share", index), index, fmt.Sprintf("GPU-%d", index))
	g.Units = units
	return g
}

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

// memoryOf lists what the published devices have of it.
func (b *bench) memoryOf(t *testing.T) string {
	t.Helper()
	return b.shown(t, func(d resourceapi.Device) string {
		amount := d.Capacity["memory"].Value
		return amount.String()
	})
}

// Before the GPUs are read, as after a boot while the NVIDIA driver is being installed, nothing says which of
// them anybody holds: what was said before is neither taken back nor replaced.
func TestNothingIsSaidOfWhoHoldsGPUsThatAreUnread(t *testing.T) {
	reasons := []string{v1alpha1.ReasonHeldWithoutClaim, v1alpha1.ReasonGPUsOfPodsUnknown, v1alpha1.ReasonOtherDriver,
		v1alpha1.ReasonHeldByGoneClaim}
	orphan := recordOf("gone", shareOf(0, 4))
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
			for _, said := range []string{"", "before"} {
				for _, reason := range reasons {
					if said != "" {
						b.events.current[reason] = said
					}
				}
				b.pass(t)
				for _, reason := range reasons {
					expect.Equal(t, said, b.events.current[reason], "event %s", reason)
				}
			}
			b.SetMachine(read)
			b.pass(t)
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
	if settled := b.pass(t); !settled || len(b.published) > 0 {
		t.Fatalf("before the pods are known: settled %t, published %v", settled, b.published)
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

// What a claim holds that is gone is not offered while its pod's processes run.
func TestWhatGoneClaimsHoldIsNotOffered(t *testing.T) {
	part, all := recordOf("gone", shareOf(0, 4)), recordOf("gone", grantOf(mode.Exclusive, "gpu-1", 1, "GPU-1"))
	for name, test := range map[string]struct {
		label  string
		record state.Record
		open   string
		want   string
		memory string
	}{
		"a share": {"share", part, shares, shares, "11Gi 15Gi"},
		"a GPU":   {"default", all, whole, "gpu-0 gpu-1!", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.mode(test.label)
			b.records = []state.Record{test.record}
			b.reconciled(t, true, test.open)
			b.SetOrphans([]orphans.Orphan{{Record: test.record, User: "p"}})
			b.reconciled(t, true, test.want)
			if test.memory != "" {
				expect.Equal(t, test.memory, b.memoryOf(t), "memory")
			}
			expect.Says(t, b.events.current[v1alpha1.ReasonHeldByGoneClaim], "by claim team/gone "+
				"(processes of the pod with UID p still run)")
			b.SetOrphans([]orphans.Orphan{{Record: test.record, Unknown: errors.New("no control groups")}})
			b.reconciled(t, true, test.want)
			expect.Says(t, b.events.current[v1alpha1.ReasonHeldByGoneClaim], "is not known (no control groups)")
			// The kubelet has it unprepared.
			b.records = nil
			b.reconciled(t, true, test.open)
			expect.Says(t, b.events.current[v1alpha1.ReasonHeldByGoneClaim], "")
		})
	}
}

// What an orphan holds makes its GPU fuller, and counts once.
func TestOrphansInTheOrderOfGPUs(t *testing.T) {
	b := newBench(t)
	b.mode("share")
	b.records = []state.Record{recordOf("gone", shareOf(1, 8))}
	b.SetOrphans([]orphans.Orphan{{Record: b.records[0], User: "p"}})
	b.reconciled(t, true, "gpu-1-share gpu-0-share")
}

// A GPU that another DRA driver grants, too, takes no claims of this one, in any mode.
func TestGPUsOfOtherDriversAreClosed(t *testing.T) {
	for label, want := range map[string]struct{ open, closed string }{
		"share": {shares, "gpu-0-share! gpu-1-share"}, "default": {whole, "gpu-0! gpu-1"},
	} {
		t.Run(label, func(t *testing.T) {
			b := newBench(t).in(t, label, want.open)
			b.nvidias = map[string][]string{"GPU-0": nil}
			b.reconciled(t, true, want.closed)
			b.saysOfOtherDrivers(t, "GPU 0 (gpu.nvidia.com): take")
			for _, d := range b.last(t) {
				for _, taint := range d.Taints {
					if taint.Key != v1alpha1.TaintOtherDriver || taint.Value != "gpu.nvidia.com" {
						t.Errorf("%s has taint %s=%s", d.Name, taint.Key, taint.Value)
					}
				}
			}
			b.nvidias = map[string][]string{"GPU-0": {"team/p"}}
			b.reconciled(t, true, want.closed)
			b.saysOfOtherDrivers(t, "GPU 0 (gpu.nvidia.com, held by team/p): take")
			expect.Says(t, b.events.current[v1alpha1.ReasonHeldWithoutClaim], "")
			b.nvidias = nil
			b.reconciled(t, true, want.open)
			b.saysOfOtherDrivers(t, "")
		})
	}
}

func (b *bench) saysOfOtherDrivers(t *testing.T, want string) {
	t.Helper()
	expect.Says(t, b.events.current[v1alpha1.ReasonOtherDriver], want)
}

// The node is the other driver's by its label: nothing is offered, whatever is published.
func TestNodeThatIsAnotherDrivers(t *testing.T) {
	b := sharing(t)
	b.label(map[string]string{"ack.node.gpu.schedule": "share", v1alpha1.LabelGPUDriver: "gpu.aliyun.com"})
	b.reconciled(t, true, shares)
	b.label(map[string]string{"ack.node.gpu.schedule": "share", v1alpha1.LabelGPUDriver: "gpu.nvidia.com"})
	b.switched(t, shareClosed, "")
	b.refusedBecause(t, "gpu.aliyun.com/gpu-driver=gpu.nvidia.com")
}

// MPS would keep the programs of others off the GPU: those of another driver's pods, and the next ones of pods of a
// device plugin.
func TestGPUsOfOthersAreNotGivenToMPS(t *testing.T) {
	for name, hold := range map[string]func(b *bench){
		"another driver's":  func(b *bench) { b.nvidias = map[string][]string{"GPU-0": nil} },
		"a device plugin's": func(b *bench) { b.pods = []*corev1.Pod{oldPod("w", "0", "aliyun.com/gpu", "1")} },
	} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t).in(t, "mps", byMPS)
			beside, alone := mps.Use{Beside: true}, mps.Use{Reserved: true}
			b.uses(t, alone, alone)
			hold(b)
			b.reconciled(t, true, "gpu-0-mps! gpu-1-mps")
			b.uses(t, beside, alone)
			b.nvidias, b.pods = nil, nil
			b.reconciled(t, true, byMPS)
			b.uses(t, alone, alone)
		})
	}
}
