// SPDX-License-Identifier: Apache-2.0

// Package watch keeps what is known of the pods on the node whose GPUs came from a device
// plugin: it watches them, asks the kubelet, and remembers what they were first seen with.
package watch

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

const (
	// readLimit is how long a claim waits for the node's pods.
	readLimit = 5 * time.Second
	// sweepInterval is how often it is looked whether deleted pods still run, while some do.
	sweepInterval = time.Second
)

// Pods knows what pods hold that a device plugin started.
type Pods interface {
	// Run works until the context ends.
	Run(ctx context.Context)
	// Observe returns what is reserved of the machine's GPUs, for the publisher, and keeps
	// what pods are seen with for the first time; Reserved does the former for a claim. Both
	// return held.ErrPodsUnread while it is not known.
	Observe(ctx context.Context, m *gpu.Machine) (held.Reserved, error)
	Reserved(ctx context.Context, m *gpu.Machine) (held.Reserved, error)
	// SetLeft is told when the last device plugin left: pods that the kubelet took later have
	// nothing of one. It is the zero time while one may serve.
	SetLeft(left time.Time)
}

// Options are what a watch of the node's pods works with.
type Options struct {
	Client   kubernetes.Interface
	NodeName string
	Kubelet  Kubelet
	// Running reports whether a pod has processes on the node. An error means that it is not known.
	Running func(pod types.UID) (bool, error)
	// File is where it is kept what pods were first seen with.
	File string
	// Left is when the last device plugin left, the zero time if that is not known.
	Left time.Time
	// Locked calls do while no other process of the node writes the file.
	Locked func(ctx context.Context, do func() error) error
	// OnChange is called when what is reserved may have changed; OnUnread is told, as long as
	// the pods cannot be read, why; OnDamaged, that the file could not be read.
	OnChange            func()
	OnUnread, OnDamaged func(err error)
	// Handlers follow the pods, too.
	Handlers []cache.ResourceEventHandler
}

// New returns a watch of the node's pods.
func New(o Options) (Pods, error) {
	observed, damage, err := openObservations(newCheckpointFile(o.File), o.Left, o.Locked, o.Running)
	if err != nil {
		return nil, err
	}
	if damage != nil {
		o.OnDamaged(damage)
	}
	w, err := newWatcher(o.Client, o.NodeName, o.Kubelet, observed, o.OnChange, o.OnUnread)
	if err != nil {
		return nil, err
	}
	for _, handler := range o.Handlers {
		if _, err := w.pods.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("watch the pods of node %s: %w", o.NodeName, err)
		}
	}
	return w, nil
}

// unclaimed watches the pods of the node, for what those hold that a device plugin
// started: they have no claim that would tell.
type watcher struct {
	pods     cache.SharedIndexInformer
	told     cache.ResourceEventHandlerRegistration
	kubelet  *kubeletAnswers
	observed *observations
	// read is closed when all pods have been seen once.
	read chan struct{}
	// left is signalled when a pod that held something was deleted.
	left chan struct{}
	// changed is called when what is reserved may have changed.
	changed func()
}

// newWatcher returns a watch of the node's pods. failed is told, as long as they
// cannot be read, why.
func newWatcher(
	client kubernetes.Interface, nodeName string, kubelet Kubelet, s *observations, changed func(),
	failed func(error),
) (*watcher, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(deviceplugin.Transform),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
		}))
	w := &watcher{
		pods: factory.Core().V1().Pods().Informer(), kubelet: &kubeletAnswers{kubelet: kubelet}, observed: s,
		read: make(chan struct{}), left: make(chan struct{}, 1), changed: changed,
	}
	if err := w.pods.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		if !w.isRead() {
			failed(err)
		}
	}); err != nil {
		return nil, fmt.Errorf("watch the pods of node %s: %w", nodeName, err)
	}
	var err error
	w.told, err = w.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: w.added, UpdateFunc: w.updated,
		DeleteFunc: w.deleted})
	if err != nil {
		return nil, fmt.Errorf("watch the pods of node %s: %w", nodeName, err)
	}
	return w, nil
}

func (w *watcher) added(object any) {
	if pod, ok := object.(*corev1.Pod); ok && w.observed.observe(pod) {
		w.changed()
	}
}

// updated uses what is read of a pod; annotations, which its owner can change as
// often as he likes, only as far as they count. After a watch that was lost, a pod that was
// created again under its name is an update of the one before, which is gone.
func (w *watcher) updated(old, object any) {
	before, wasPod := old.(*corev1.Pod)
	after, isPod := object.(*corev1.Pod)
	if !wasPod || !isPod {
		return
	}
	if before.UID != after.UID {
		w.deleted(before)
	}
	if w.observed.observe(after) || (deviceplugin.Holds(before) || deviceplugin.Holds(after)) && !same(before, after) {
		w.changed()
	}
}

func (w *watcher) deleted(object any) {
	pod, ok := informer.Object(object).(*corev1.Pod)
	if !ok {
		return
	}
	w.observed.deleted(pod)
	if deviceplugin.Holds(pod) {
		signal.Send(w.left)
		w.changed()
	}
}

// same reports whether two versions of a pod are alike in what counts beside annotations.
func same(before, after *corev1.Pod) bool {
	again := *after
	again.ResourceVersion, again.Annotations = before.ResourceVersion, before.Annotations
	return apiequality.Semantic.DeepEqual(before, &again)
}

// Run watches until the context ends.
func (w *watcher) Run(ctx context.Context) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.pods.RunWithContext(ctx)
	}()
	// Not by looking ten times a second, as cache.WaitForCacheSync does: the first
	// claims wait for it.
	select {
	case <-w.told.HasSyncedChecker().Done():
		w.observed.prune(informer.List[*corev1.Pod](w.pods))
		close(w.read)
		w.changed()
		w.sweep(ctx)
	case <-ctx.Done():
	}
	<-stopped
}

// sweep forgets, until the context ends, the pods that were deleted by force when they have ended.
func (w *watcher) sweep(ctx context.Context) {
	for {
		gone, others := w.observed.sweep()
		if gone {
			w.changed()
		}
		var again <-chan time.Time
		if others {
			again = time.After(sweepInterval)
		}
		select {
		case <-again:
		case <-w.left:
		case <-ctx.Done():
			return
		}
	}
}

// SetLeft implements [Pods].
func (w *watcher) SetLeft(left time.Time) { w.observed.setLeft(left) }

func (w *watcher) isRead() bool {
	select {
	case <-w.read:
		return true
	default:
		return false
	}
}

// Reserved is now, after a moment's wait for the node's pods, if need be: a claim that is
// refused is not tried again by the kubelet for ten seconds and more.
func (w *watcher) Reserved(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	limit, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	select {
	case <-w.read:
	case <-limit.Done():
	}
	return w.now(ctx, m)
}

// Observe is now, and keeps what pods were first seen with.
func (w *watcher) Observe(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	t, err := w.now(ctx, m)
	if err != nil {
		return held.Reserved{}, err
	}
	return t, w.observed.store(ctx)
}

// now returns what is reserved of the machine's GPUs; held.ErrPodsUnread before the
// node's pods are known. The kubelet is asked while it may have something to tell.
func (w *watcher) now(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	if !w.isRead() {
		return held.Reserved{}, held.ErrPodsUnread
	}
	var pods []*corev1.Pod
	for _, pod := range informer.List[*corev1.Pod](w.pods) {
		if deviceplugin.Holds(pod) {
			pods = append(pods, pod)
		}
	}
	var kubelet deviceplugin.Kubelet
	if need, notBefore := w.observed.needKubelet(pods); need {
		kubelet = w.kubelet.ask(ctx, notBefore)
	}
	return w.observed.reserved(pods, nodeOf(m, kubelet)), nil
}

// nodeOf is what is known of the machine's GPUs, also of those that are left out or in MIG mode: a pod
// may be on one of them.
func nodeOf(m *gpu.Machine, kubelet deviceplugin.Kubelet) deviceplugin.Node {
	n := deviceplugin.Node{GPUs: slices.Clone(m.GPUs), Instances: map[string]int{}, Kubelet: kubelet}
	for _, p := range m.Partitioned {
		n.GPUs = append(n.GPUs, p.GPU)
		for _, i := range p.Instances {
			if i.UUID != "" {
				n.Instances[i.UUID] = p.Index
			}
		}
	}
	for _, fault := range m.Faults {
		n.GPUs = append(n.GPUs, gpu.GPU{Index: fault.Index, UUID: fault.UUID})
	}
	return n
}
