package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// oldPod runs on the node without a claim. limits are alternately a resource and its
// amount, the card is as in the annotation of the first version; "" for none.
func oldPod(name, card string, limits ...string) *corev1.Pod {
	list := corev1.ResourceList{}
	for i := 0; i < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "old", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: list}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if card != "" {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "ALIYUN_COM_GPU_MEM_IDX", card)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "topology.kubernetes.io/gpu-group", card)
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
	if diff := cmp.Diff("11Gi 0", b.memoryOf(t)); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if got := b.events.current[reasonHeld]; !strings.Contains(got, "GPU 0: 4 of 15 GiB (old/a); GPU 1: 15 of 15 GiB (old/b)") {
		t.Errorf("event %q", got)
	}
	b.pods[1].Status.Phase = corev1.PodSucceeded
	b.reconciled(t, true, shares)
	b.pods = nil
	b.reconciled(t, true, shares)
	if diff := cmp.Diff("15Gi 15Gi", b.memoryOf(t)); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if got := b.events.current[reasonHeld]; got != "" {
		t.Errorf("event %q", got)
	}
}

func TestPodOfWhichTheCardIsNotKnown(t *testing.T) {
	b := newBench(t)
	b.mode("share")
	b.pods = []*corev1.Pod{oldPod("lost", "7", "aliyun.com/gpu-mem", "4")}
	b.reconciled(t, false, shares)
	if diff := cmp.Diff("11Gi 11Gi", b.memoryOf(t)); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if got := b.events.current[reasonCardsUnknown]; !strings.Contains(got, "pod old/lost: ") || !strings.Contains(got, "no card 7") {
		t.Errorf("event %q", got)
	}
	b.pods = nil
	b.reconciled(t, true, shares)
	if got := b.events.current[reasonCardsUnknown]; got != "" {
		t.Errorf("event %q", got)
	}
}

// Whoever holds a share holds the card in the mode that it was given in.
func TestCardsOfPodsWithoutClaimInOtherModes(t *testing.T) {
	memory, compute := oldPod("m", "0", "aliyun.com/gpu-mem", "4"), oldPod("c", "1", "aliyun.com/gpu-mem", "4", "aliyun.com/gpu-core.percentage", "96")
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
	// Its card stays closed when the mode changes; the others are offered.
	b.mode("share")
	b.switched(t, wholeClosed, "gpu-0-share gpu-1-share!")
}

func TestSpreadCountsPodsWithoutClaim(t *testing.T) {
	b := newBench(t)
	b.label(map[string]string{mode.ScheduleLabel: "share", mode.PlacementLabel: "spread"})
	b.pods = []*corev1.Pod{oldPod("a", "0", "aliyun.com/gpu-mem", "4")}
	b.reconciled(t, true, "gpu-1-share gpu-0-share")
}

// start runs the watch until the test ends.
func start(ctx context.Context, t *testing.T, u *unclaimed) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		u.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
	})
}

func TestPodsOfTheNodeAreWatched(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset(oldPod("a", "0", "aliyun.com/gpu-mem", "4"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "other", UID: "other"}, Spec: corev1.PodSpec{NodeName: "n1"},
	})
	var selectors []string
	client.PrependReactor("list", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		selectors = append(selectors, action.(k8stesting.ListAction).GetListRestrictions().Fields.String())
		return false, nil, nil
	})
	changed := make(chan struct{}, 100)
	u, err := newUnclaimed(client, "n1", podresources.Client(filepath.Join(t.TempDir(), "none.sock")), opened(t, t.TempDir()), func() { changed <- struct{}{} }, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	m := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}}, Faults: []gpu.Fault{{Index: 1, UUID: "GPU-1"}}}
	if _, err := u.now(ctx, m); err != errPodsUnread {
		t.Errorf("before the watch: %v", err)
	}
	start(ctx, t, u)
	holds := func(want string) {
		t.Helper()
		for {
			got, err := u.soon(ctx, m)
			if err != nil {
				t.Fatal(err)
			}
			card := got.Card("GPU-0")
			if text := fmt.Sprintf("%d %t %v", card.Units, card.Whole, card.Pods); text == want {
				return
			}
			select {
			case <-changed:
			case <-t.Context().Done():
				t.Fatalf("it holds %+v, want %s", card, want)
			}
		}
	}
	holds("4 false [old/a]")
	if len(selectors) == 0 || selectors[0] != "spec.nodeName=n1" {
		t.Errorf("pods were listed by %q", selectors)
	}
	// The card of a fault is a card, too.
	if err := client.Tracker().Add(oldPod("b", "1", "aliyun.com/gpu-mem", "4")); err != nil {
		t.Fatal(err)
	}
	ended := oldPod("a", "0", "aliyun.com/gpu-mem", "4")
	ended.Status.Phase = corev1.PodFailed
	if _, err := client.CoreV1().Pods("old").UpdateStatus(ctx, ended, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	holds("0 false []")
	// A kubelet that does not answer leaves it unknown.
	if err := client.Tracker().Add(oldPod("n", "", "nvidia.com/gpu", "1")); err != nil {
		t.Fatal(err)
	}
	holds("0 true [old/n]")
}

func TestPodsThatCannotBeRead(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(resourceapi.Resource("pods"), "", nil)
	})
	failed := make(chan error, 100)
	u, err := newUnclaimed(client, "n1", "", opened(t, t.TempDir()), func() {}, func(err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	start(ctx, t, u)
	if err := <-failed; !apierrors.IsForbidden(err) {
		t.Errorf("told %v", err)
	}
}
