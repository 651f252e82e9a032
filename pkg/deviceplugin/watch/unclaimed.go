// Package watch keeps what is known of the pods on the node whose GPUs came from a device
// plugin: it watches them, asks the kubelet, and remembers what they were first seen with.
package watch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// readLimit is how long a claim waits for the node's pods.
const readLimit = 5 * time.Second

// Pods knows what pods hold that a device plugin started.
type Pods interface {
	// Run works until the context ends.
	Run(ctx context.Context)
	// Look returns what is taken of the machine's cards, for the publisher; Soon does so
	// for a claim. Both return deviceplugin.ErrPodsUnread while that is not known.
	Look(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error)
	Soon(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error)
	// SetLeft is told when the last device plugin left: pods that were created later have
	// nothing of one. It is the zero time while one may serve.
	SetLeft(left time.Time)
}

// Options are what a watch of the node's pods works with.
type Options struct {
	Client   kubernetes.Interface
	NodeName string
	// Kubelet is the kubelet's PodResources API.
	Kubelet podresources.Client
	// File is where it is kept what pods were first seen with.
	File string
	// Left is when the last device plugin left, the zero time if that is not known.
	Left time.Time
	// Locked calls do while no other process of the node writes the file.
	Locked func(ctx context.Context, do func() error) error
	// OnChange is called when what is taken may have changed; OnUnread is told, as long as
	// the pods cannot be read, why; OnDamaged, that the file could not be read.
	OnChange            func()
	OnUnread, OnDamaged func(err error)
	// Handler, if set, follows the pods, too.
	Handler cache.ResourceEventHandler
}

// New returns a watch of the node's pods.
func New(o Options) (Pods, error) {
	sights, damage, err := openSights(sightsFile(o.File), o.Left, o.Locked)
	if err != nil {
		return nil, err
	}
	if damage != nil {
		o.OnDamaged(damage)
	}
	u, err := newUnclaimed(o.Client, o.NodeName, o.Kubelet, sights, o.OnChange, o.OnUnread)
	if err != nil {
		return nil, err
	}
	if o.Handler == nil {
		return u, nil
	}
	if _, err := u.pods.AddEventHandler(o.Handler); err != nil {
		return nil, fmt.Errorf("watch the pods of node %s: %w", o.NodeName, err)
	}
	return u, nil
}

// unclaimed watches the pods of the node, for what those hold that a device plugin
// started: they have no claim that would tell.
type unclaimed struct {
	pods    cache.SharedIndexInformer
	told    cache.ResourceEventHandlerRegistration
	kubelet *kubeletView
	sights  *sights
	// read is closed when all pods have been seen once.
	read chan struct{}
	// changed is called when what is taken may have changed.
	changed func()
}

// newUnclaimed returns a watch of the node's pods. failed is told, as long as they
// cannot be read, why.
func newUnclaimed(client kubernetes.Interface, nodeName string, kubelet podresources.Client, s *sights, changed func(), failed func(error)) (*unclaimed, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(deviceplugin.Transform),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
		}))
	u := &unclaimed{
		pods: factory.Core().V1().Pods().Informer(), kubelet: &kubeletView{client: kubelet}, sights: s, read: make(chan struct{}), changed: changed,
	}
	if err := u.pods.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		if !u.isRead() {
			failed(err)
		}
	}); err != nil {
		return nil, fmt.Errorf("watch the pods of node %s: %w", nodeName, err)
	}
	var err error
	u.told, err = u.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: u.added, UpdateFunc: u.updated, DeleteFunc: u.deleted})
	if err != nil {
		return nil, fmt.Errorf("watch the pods of node %s: %w", nodeName, err)
	}
	return u, nil
}

func (u *unclaimed) added(object any) {
	if pod, ok := object.(*corev1.Pod); ok && u.sights.see(pod) {
		u.changed()
	}
}

// updated goes by what is read of a pod; annotations, which its owner can change as
// often as he likes, only as far as they count.
func (u *unclaimed) updated(old, object any) {
	before, wasPod := old.(*corev1.Pod)
	after, isPod := object.(*corev1.Pod)
	if !wasPod || !isPod {
		return
	}
	if u.sights.see(after) || (deviceplugin.Holds(before) || deviceplugin.Holds(after)) && !same(before, after) {
		u.changed()
	}
}

func (u *unclaimed) deleted(object any) {
	pod, ok := informer.Object(object).(*corev1.Pod)
	if !ok {
		return
	}
	u.sights.forget(pod.UID)
	if deviceplugin.Holds(pod) {
		u.changed()
	}
}

// same says whether two versions of a pod are alike in what counts beside annotations.
func same(before, after *corev1.Pod) bool {
	again := *after
	again.ResourceVersion, again.Annotations = before.ResourceVersion, before.Annotations
	return apiequality.Semantic.DeepEqual(before, &again)
}

// Run watches until the context ends.
func (u *unclaimed) Run(ctx context.Context) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		u.pods.RunWithContext(ctx)
	}()
	// Not by looking ten times a second, as cache.WaitForCacheSync does: the first
	// claims wait for it.
	select {
	case <-u.told.HasSyncedChecker().Done():
		u.sights.prune(informer.List[*corev1.Pod](u.pods))
		close(u.read)
		u.changed()
	case <-ctx.Done():
	}
	<-stopped
}

func (u *unclaimed) isRead() bool {
	select {
	case <-u.read:
		return true
	default:
		return false
	}
}

// Soon is now, after a moment's wait for the node's pods, if need be: a claim that is
// refused is not tried again by the kubelet for ten seconds and more.
func (u *unclaimed) Soon(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	limit, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	select {
	case <-u.read:
	case <-limit.Done():
	}
	return u.now(ctx, m)
}

// Look is now, and remembers what pods were first seen with.
func (u *unclaimed) Look(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	t, err := u.now(ctx, m)
	if err != nil {
		return deviceplugin.Taken{}, err
	}
	return t, u.sights.store(ctx)
}

// now returns what is taken of the machine's cards; deviceplugin.ErrPodsUnread before the node's
// pods are known. The kubelet is asked while it may have something to tell.
func (u *unclaimed) now(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	if !u.isRead() {
		return deviceplugin.Taken{}, deviceplugin.ErrPodsUnread
	}
	var pods []*corev1.Pod
	for _, pod := range informer.List[*corev1.Pod](u.pods) {
		if deviceplugin.Holds(pod) {
			pods = append(pods, pod)
		}
	}
	var kubelet deviceplugin.Kubelet
	if u.sights.ask(pods) {
		kubelet = u.kubelet.ask(ctx)
	}
	return u.sights.of(pods, allCards(m), kubelet), nil
}

// kubeletView is what the kubelet said last of the devices that it gave to pods.
type kubeletView struct {
	client podresources.Client

	mu     sync.Mutex
	at     time.Time
	answer deviceplugin.Kubelet
}

// goodFor is how long an answer of the kubelet's is good for. It bounds what pods cost
// that ask for devices and have none: whoever may write pods may write many, and the
// kubelet refuses to answer more than some 100 times a second.
const goodFor = time.Second

// last returns what the kubelet said last, if anything.
func (v *kubeletView) last() deviceplugin.Kubelet {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.answer
}

// ask returns what the kubelet says now, or said a moment ago.
func (v *kubeletView) ask(ctx context.Context) deviceplugin.Kubelet {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.at.IsZero() && time.Since(v.at) < goodFor {
		return v.answer
	}
	var answer deviceplugin.Kubelet
	answer.Containers, answer.Err = v.client.Devices(ctx)
	if ctx.Err() == nil {
		v.at, v.answer = time.Now(), answer
	}
	return answer
}

// allCards are the machine's cards, also those that are left out: a pod may be on one
// of them.
func allCards(m *gpu.Machine) []gpu.GPU {
	cards := slices.Clone(m.GPUs)
	for _, fault := range m.Faults {
		cards = append(cards, gpu.GPU{Index: fault.Index, UUID: fault.UUID})
	}
	return cards
}
