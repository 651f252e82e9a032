// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const (
	perNode    = 10
	namespaces = 2
	template   = "gpushare.mem.main.1"
)

// site is the API server: it counts what the controller asks for, and lets through as
// much as its client does.
type site struct {
	client *fake.Clientset
	// tracker holds the objects. That of fake.NewClientset keeps track of who wrote which
	// field as well, which takes longer than all that is measured.
	tracker  k8stesting.ObjectTracker
	metadata *metadatafake.FakeMetadataClient
	limiter  flowcontrol.RateLimiter
	mu       sync.Mutex
	requests map[string]int
	told     map[string]chan struct{}
}

func node(i int) string { return fmt.Sprintf("node-%04d", i) }

func namespace(i int) string { return fmt.Sprintf("team-%02d", i%namespaces) }

// slice is what a node publishes, in one of two orders.
func slice(i int, turned bool) *resourceapi.ResourceSlice {
	m := &gpu.Machine{}
	for g := range 8 {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: g, UUID: fmt.Sprintf("GPU-%04d-%d", i, g),
			Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920})
	}
	pool := v1alpha1.PoolName(node(i))
	built := devices.Build(m, devices.Options{Pool: pool, Mode: mode.Share, Slots: 20,
		Isolation: "none"}).Pools[pool].Slices[0]
	generation := int64(1)
	if turned {
		slices.Reverse(built.Devices)
		generation = 2
	}
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node(i), UID: types.UID("slice-" + node(i)),
			ResourceVersion: fmt.Sprint(generation)},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: v1alpha1.DriverName, NodeName: ptr.To(node(i)), Devices: built.Devices,
			Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1, Generation: generation},
		},
	}
}

// claim is one with a share of a node's GPU, used by the pod of its name.
func claim(namespace, name, onNode string, g int) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("claim-" + name), ResourceVersion: "1",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID(name),
				Controller: ptr.To(true)}},
		},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
					Request: "main", Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(onNode),
					Device:  devices.DeviceName(g, mode.Share),
					ShareID: ptr.To(types.UID("share-" + name)), ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
						v1alpha1.CapMemory: resource.MustParse("1Gi"), v1alpha1.CapSlots: resource.MustParse("1"),
					},
				}}}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}},
		},
	}
}

// pod is one with a claim of its own, which has its name.
func pod(namespace, name, onNode, ofTemplate string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: corev1.PodSpec{
			NodeName: onNode, Containers: []corev1.Container{{Name: "main"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: legacy.ClaimName, ResourceClaimTemplateName: &ofTemplate}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending, ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: legacy.ClaimName,
				ResourceClaimName: &name}},
		},
	}
}

// legacyPod is the one of that number, with its annotations.
func legacyPod(i int) *corev1.Pod {
	p := pod(namespace(i/perNode), fmt.Sprintf("pod-%05d", i), node(i/perNode), template)
	p.Labels, p.Status.Phase = map[string]string{v1alpha1.LabelLegacy: "true"}, corev1.PodRunning
	p.Annotations = map[string]string{ack.AnnotationMemory: fmt.Sprintf(`{"0":{"%d":1}}`, i%perNode%8)}
	return p
}

func newSite(nodes, pods int) (*site, error) {
	var objects []runtime.Object
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}
	var metas []runtime.Object
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node(i), UID: types.UID(node(i)), Labels: map[string]string{
			"aliyun.accelerator/nvidia_name": "NVIDIA-A100-SXM4-80GB", "aliyun.accelerator/nvidia_mem": "81920MiB",
			"aliyun.accelerator/nvidia_count": "8",
		}}}
		objects = append(objects, n, slice(i, false))
		metas = append(metas, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: n.ObjectMeta})
		for j := range perNode {
			name := fmt.Sprintf("pod-%05d", perNode*i+j)
			c := claim(namespace(i), name, node(i), j%8)
			if perNode*i+j < pods {
				c.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
				objects = append(objects, legacyPod(perNode*i+j))
			}
			objects = append(objects, c)
		}
	}
	classes, err := deviceclasses.All()
	if err != nil {
		return nil, err
	}
	for _, class := range classes {
		objects = append(objects, class)
	}
	s := &site{
		client: &fake.Clientset{}, tracker: k8stesting.NewObjectTracker(clientscheme.Scheme,
			clientscheme.Codecs.UniversalDecoder()), metadata: metadatafake.NewSimpleMetadataClient(scheme, metas...),
		limiter: flowcontrol.NewTokenBucketRateLimiter(50, 100), requests: map[string]int{}, told: map[string]chan struct{}{},
	}
	for _, object := range objects {
		if err := s.tracker.Add(object); err != nil {
			return nil, err
		}
	}
	s.client.AddReactor("*", "*", k8stesting.ObjectReaction(s.tracker))
	s.client.AddWatchReactor("*", func(action k8stesting.Action) (bool, watch.Interface, error) {
		w, err := s.tracker.Watch(action.GetResource(), action.GetNamespace())
		return true, w, err
	})
	s.client.PrependReactor("list", "pods", s.listPods)
	s.client.PrependReactor("create", "events", s.event)
	s.client.PrependReactor("*", "*", s.count)
	s.client.PrependWatchReactor("pods", s.watchPods)
	return s, nil
}

// count counts a request of the controller, and has it wait as its client would. What
// others do to the cluster does not come by here: it goes to the tracker.
func (s *site) count(action k8stesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	s.requests[action.GetVerb()+" "+action.GetResource().Resource]++
	s.mu.Unlock()
	s.limiter.Accept()
	return false, nil, nil
}

// taken returns what was asked for since the last call.
func (s *site) taken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := 0
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(s.requests)) {
		total += s.requests[key]
		parts = append(parts, fmt.Sprintf("%d %s", s.requests[key], key))
	}
	clear(s.requests)
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

// event notices that a pod is told something.
func (s *site) event(action k8stesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(k8stesting.CreateAction)
	if !ok {
		return false, nil, nil
	}
	if event, ok := create.GetObject().(*corev1.Event); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		if told := s.told[event.InvolvedObject.Name]; told != nil {
			close(told)
			delete(s.told, event.InvolvedObject.Name)
		}
	}
	return true, create.GetObject(), nil
}

// selected says whether a pod is one that a list or a watch is about: the fake client
// minds no field selectors, and no label selectors of watches.
func selected(p *corev1.Pod, byFields fields.Selector, byLabels labels.Selector) bool {
	return (byFields == nil || byFields.Matches(fields.Set{
		"status.phase": string(p.Status.Phase), "spec.nodeName": p.Spec.NodeName, "metadata.name": p.Name,
		"metadata.namespace": p.Namespace,
	})) && (byLabels == nil || byLabels.Matches(labels.Set(p.Labels)))
}

func (s *site) listPods(action k8stesting.Action) (bool, runtime.Object, error) {
	list, ok := action.(k8stesting.ListAction)
	if !ok {
		return false, nil, nil
	}
	object, err := s.tracker.List(action.GetResource(), corev1.SchemeGroupVersion.WithKind("Pod"), action.GetNamespace())
	pods, ok := object.(*corev1.PodList)
	if err != nil || !ok {
		return true, nil, fmt.Errorf("pods are a %T: %w", object, err)
	}
	by := list.GetListRestrictions()
	pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !selected(&p, by.Fields, by.Labels) })
	return true, pods, nil
}

func (s *site) watchPods(action k8stesting.Action) (bool, watch.Interface, error) {
	watched, ok := action.(k8stesting.WatchAction)
	if !ok {
		return false, nil, nil
	}
	all, err := s.tracker.Watch(action.GetResource(), action.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	by := watched.GetWatchRestrictions()
	return true, watch.Filter(all, func(e watch.Event) (watch.Event, bool) {
		p, ok := e.Object.(*corev1.Pod)
		return e, ok && selected(p, by.Fields, by.Labels)
	}), nil
}
