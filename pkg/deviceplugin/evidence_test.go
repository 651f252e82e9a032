// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

var left = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// taken makes a pod one that the kubelet took at that time, relative to when the device plugin left. The clock of the
// API server is another.
func taken(after time.Duration, p *corev1.Pod) *corev1.Pod {
	p.Status.StartTime = ptr.To(metav1.NewTime(left.Add(after)))
	p.CreationTimestamp = metav1.NewTime(left.Add(-after))
	return p
}

// waits makes a pod one of which nothing was ever started.
func waits(p *corev1.Pod) *corev1.Pod {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c0", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
	}}}
	return p
}

func initOnly(limits ...string) *corev1.Pod {
	p := pod("p", containers(container("c0")))
	p.Spec.InitContainers = containers(container("i", limits...))
	return p
}

// A pod to which no device plugin can have given anything holds nothing, whatever its
// author wrote in it.
func TestPodsToWhichNothingWasGiven(t *testing.T) {
	given := func() *corev1.Pod { return share(v2, `{"0":{"0":3}}`) }
	pair := func() *corev1.Pod { return pod("p", containers(container("c0", linked, "2")), wholesOld, "0,1") }
	static := whole("1")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	static.Finalizers, static.DeletionTimestamp = []string{"a/b"}, &metav1.Time{Time: left}
	before := waits(initOnly(nvidia, "1"))
	before.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{Name: "i", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	silent := Kubelet{Err: errors.New("no socket")}
	none := lists()
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		kubelet Kubelet
		want    string
	}{
		"the kubelet lists it without devices":        {whole("1"), none, ""},
		"a share that the kubelet lists without":      {given(), none, ""},
		"linked GPUs that the kubelet lists without":  {pair(), none, ""},
		"a share without any annotation":              {share(), none, ""},
		"it never started":                            {waits(whole("1")), Kubelet{}, ""},
		"it never started, and the kubelet is silent": {waits(given()), silent, ""},
		"it says that it is static":                   {waits(static), Kubelet{}, ""},
		"it came after the device plugin":             {taken(time.Second, whole("1")), Kubelet{}, ""},
		"after it, and the kubelet is silent":         {taken(time.Second, given()), silent, ""},
		"after it, linked GPUs":                       {taken(time.Second, pair()), silent, ""},
		"after it, an init container":                 {taken(time.Second, initOnly(nvidia, "1")), none, ""},
		"a never started init container":              {waits(initOnly(nvidia, "1")), none, ""},
		"a given share of one resource, none of GPUs": {whole("1"), lists(mem), ""},

		"the kubelet lists it with devices":           {taken(time.Hour, whole("1")), gave("GPU-1"), "1:whole"},
		"a share with devices":                        {taken(time.Hour, given()), lists(mem), "0:3/0/1"},
		"with devices, and not started yet":           {waits(given()), lists(mem), "0:3/0/1"},
		"linked GPUs with devices":                    {taken(time.Hour, pair()), lists(linked), "0:whole 1:whole"},
		"before it left, the kubelet is silent":       {taken(0, given()), silent, "0:3/0/1"},
		"before it left, unknown to the kubelet":      {taken(0, whole("1")), Kubelet{}, "?:whole"},
		"before it left, an init container":           {taken(0, initOnly(nvidia, "1")), none, "?:whole"},
		"before it left, an init container that runs": {before, none, "?:whole"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, p := range []*corev1.Pod{test.pod, Trim(test.pod)} {
				got, holds := Read(p, Node{GPUs: fourGPUs(), Kubelet: test.kubelet, Left: left})
				if amounts(got) != test.want || holds != (test.want != "") {
					t.Errorf("it holds %q, want %q: %+v", amounts(got), test.want, got.Unknown)
				}
			}
		})
	}
}

// What a pod was first seen with holds until it ends.
func TestAnnotationsThatAreChangedLater(t *testing.T) {
	observed := Observations{}
	holds := func(p *corev1.Pod, kubelet Kubelet, want string) {
		t.Helper()
		p.UID = "uid"
		p = Trim(p)
		observed.Observe(p, time.Time{})
		observed.AddDevices([]*corev1.Pod{p}, kubelet)
		got, _ := Read(p, Node{GPUs: fourGPUs(), Kubelet: kubelet, Observed: observed})
		expect.Equal(t, want, amounts(got), "it holds; unknown are %+v", got.Unknown)
	}
	holds(waits(share()), lists(), "")
	// The scheduler that writes after it has bound the pod.
	holds(waits(share(v1, "0")), lists(), "")
	holds(waits(share(v1, "2")), lists(mem), "0:3/0/1")
	for _, p := range []*corev1.Pod{share(v1, "3"), share(), share(v1, "nonsense"), share(v2, `{"0":{"3":3}}`)} {
		holds(p, lists(mem), "0:3/0/1")
		// A kubelet that has just been started lists no devices, or nothing.
		holds(p, lists(), "0:3/0/1")
		holds(p, Kubelet{}, "0:3/0/1")
		holds(p, Kubelet{Err: errors.New("no socket")}, "0:3/0/1")
	}
	ended := share(v1, "0")
	ended.Status.Phase = corev1.PodSucceeded
	holds(ended, lists(), "")
	expect.Equal(t, 0, len(observed), "observations of a pod that has ended")
	// One that is first seen running, without an annotation.
	holds(share(), lists(mem), "?:3/0/1")
	holds(share(v1, "0"), lists(mem), "?:3/0/1")
}

func TestSightThatWasLost(t *testing.T) {
	p := share(v1, "0")
	p.UID = "uid"
	observed := Observations{"uid": {Namespace: "ns", Name: "p", Lost: true}}
	observed.Observe(p, time.Time{})
	got, _ := Read(p, Node{GPUs: fourGPUs(), Kubelet: lists(mem), Observed: observed})
	if amounts(got) != "?:3/0/1" || !strings.Contains(got.Unknown[0].Reason, "GPUStateDamaged") {
		t.Errorf("it holds %+v", got)
	}
	// What the kubelet says of whole GPUs nobody can change.
	w := whole("1")
	w.UID = "uid"
	got, _ = Read(w, Node{GPUs: fourGPUs(), Kubelet: gave("GPU-1"), Observed: observed})
	expect.Equal(t, "1:whole", amounts(got), "it holds")
}

// The kubelet gives devices to one container after the other.
func TestDevicesAreKeptWhenAllAreThere(t *testing.T) {
	p := waits(pod("p", containers(container("c0", nvidia, "1"), container("c1", nvidia, "1"))))
	p.UID = "uid"
	observed := Observations{}
	observed.Observe(p, time.Time{})
	first := gave("GPU-0")
	first.Containers[Container{"ns", "p", "c1"}] = Devices{}
	needs := func() bool {
		need, _ := observed.NeedKubelet(p)
		return need
	}
	if observed.AddDevices([]*corev1.Pod{p}, first) || !needs() {
		t.Errorf("kept %+v", observed)
	}
	first.Containers[Container{"ns", "p", "c1"}] = Devices{Resources: []corev1.ResourceName{nvidia},
		IDs: []string{"GPU-3"}}
	if !observed.AddDevices([]*corev1.Pod{p}, first) || needs() ||
		observed.AddDevices([]*corev1.Pod{p}, first) {
		t.Errorf("kept %+v", observed)
	}
	got, _ := Read(p, Node{GPUs: fourGPUs(), Observed: observed})
	expect.Equal(t, "0:whole 3:whole", amounts(got), "it holds")
}

// A kubelet that was asked before a pod was there may have meant the one that had its name before.
func TestAnswersFromBeforeThePodWasSeen(t *testing.T) {
	p := waits(whole("1"))
	p.UID = "uid"
	observed, before := Observations{}, gave("GPU-0")
	before.Asked = left
	observed.Observe(p, left.Add(time.Second))
	observed.Observe(p, left.Add(time.Hour))
	if observed.AddDevices([]*corev1.Pod{p}, before) {
		t.Errorf("kept %+v", observed)
	}
	need, notBefore := observed.NeedKubelet(p)
	now := gave("GPU-1")
	now.Asked = notBefore
	if !need || !notBefore.Equal(left.Add(time.Second)) || !observed.AddDevices([]*corev1.Pod{p}, now) {
		t.Errorf("kept %+v, asked not before %s", observed, notBefore)
	}
}

// A tenant's annotation of any length costs neither memory nor an Event of that length.
func TestLongAnnotation(t *testing.T) {
	p := share(v2, `{"0":{"0":3`+strings.Repeat(" ", 250_000)+`}}`)
	trimmed := Trim(p)
	if n := len(trimmed.Annotations[v2]); n > mostAnnotation+1 {
		t.Errorf("%d bytes are kept", n)
	}
	for _, p := range []*corev1.Pod{p, trimmed} {
		got, _ := Read(p, Node{GPUs: fourGPUs(), Kubelet: lists(mem)})
		if amounts(got) != "?:3/0/1" || !strings.Contains(got.Unknown[0].Reason, "has more than 4096 bytes") {
			t.Errorf("it holds %+v", got)
		}
	}
	odd := share(v2, "\x1b[2J"+strings.Repeat("x", 1000))
	got, _ := Read(odd, Node{GPUs: fourGPUs(), Kubelet: lists(mem)})
	if reason := got.Unknown[0].Reason; len(reason) > 300 || strings.ContainsRune(reason, '\x1b') ||
		!strings.Contains(reason, "(1004 bytes)") {
		t.Errorf("reason %q", reason)
	}
}

// Where pods are not read, what the kubelet lists is taken all the same.
func TestWhatTheKubeletListsAlone(t *testing.T) {
	for name, test := range map[string]struct {
		kubelet Kubelet
		want    string
	}{
		"nothing":            {lists(), ""},
		"the kubelet errs":   {Kubelet{Err: errors.New("no socket")}, ""},
		"a whole GPU":        {gave("GPU-1"), "GPU-1"},
		"a GPU unknown":      {gave("GPU-9"), "GPU-0 GPU-1 GPU-2 GPU-3"},
		"a share, somewhere": {lists(mem), "GPU-0 GPU-1 GPU-2 GPU-3"},
		"a MIG device":       {gave("MIG-1"), "GPU-1"},
		"one that is gone":   {gave("MIG-9"), ""},
	} {
		got := Listed(Node{GPUs: fourGPUs(), Instances: map[string]int{"MIG-1": 1}, Kubelet: test.kubelet})
		var closed []string
		for _, g := range fourGPUs() {
			if got.GPU(g.UUID).Whole {
				closed = append(closed, g.UUID)
			}
		}
		expect.Equal(t, test.want, strings.Join(closed, " "), "%s: closed are", name)
	}
	// Whoever finds all GPUs closed is told what opens the others.
	share := Listed(Node{GPUs: fourGPUs(), Kubelet: lists(mem)}).Pods[0]
	expect.Says(t, share.Unknown[0].Reason, "option device-plugin-pods")
}
