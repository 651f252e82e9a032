package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Reasons of the node Events about pods that hold cards without a claim.
const (
	reasonPodsUnread   = "GPUPodsUnread"
	reasonHeld         = "GPUHeldWithoutClaim"
	reasonCardsUnknown = "GPUCardsOfPodsUnknown"
	reasonStateDamaged = "GPUStateDamaged"
)

// readLimit is how long a claim waits for the node's pods.
const readLimit = 5 * time.Second

// errPodsUnread says that it is not known yet what pods without a claim hold.
var errPodsUnread = errors.New("the node's pods, some of which may hold cards without a claim, have not been read from the API server yet: see the node's Events; the kubelet tries again by itself")

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

// run watches until the context ends.
func (u *unclaimed) run(ctx context.Context) {
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

// soon is now, after a moment's wait for the node's pods, if need be: a claim that is
// refused is not tried again by the kubelet for ten seconds and more.
func (u *unclaimed) soon(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	limit, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	select {
	case <-u.read:
	case <-limit.Done():
	}
	return u.now(ctx, m)
}

// look is now, and remembers what pods were first seen with.
func (u *unclaimed) look(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	t, err := u.now(ctx, m)
	if err != nil {
		return deviceplugin.Taken{}, err
	}
	return t, u.sights.store(ctx)
}

// now returns what is taken of the machine's cards; errPodsUnread before the node's
// pods are known. The kubelet is asked while it may have something to tell.
func (u *unclaimed) now(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	if !u.isRead() {
		return deviceplugin.Taken{}, errPodsUnread
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

// tellTaken says which pods hold cards without a claim, and of which it is not known
// what they hold.
func (p *publisher) tellTaken(m *gpu.Machine, t deviceplugin.Taken) {
	var held []string
	for _, g := range m.GPUs {
		if card := t.Card(g.UUID); len(card.Pods) > 0 {
			held = append(held, fmt.Sprintf("GPU %d: %s (%s)", g.Index, amountOf(g, card), listed(card.Pods)))
		}
	}
	if len(held) == 0 {
		p.events.clear(reasonHeld)
	} else {
		p.events.normal(reasonHeld, "Pods that a device plugin started hold these GPUs without a claim, until they end: "+strings.Join(held, "; "))
	}
	var unknown []string
	for _, pod := range t.Pods {
		for _, u := range pod.Unknown {
			unknown = append(unknown, fmt.Sprintf("pod %s: %s", pod.FullName(), u.Reason))
		}
	}
	if len(unknown) == 0 {
		p.events.clear(reasonCardsUnknown)
		return
	}
	p.events.warn(reasonCardsUnknown, "It is not known which GPUs these pods hold, so what they ask for counts on every GPU until they end: "+listed(unknown))
}

// amountOf is what is taken of a card, in words.
func amountOf(g gpu.GPU, card deviceplugin.Card) string {
	switch {
	case card.Whole:
		return "all of it"
	case card.Cores > 0:
		return fmt.Sprintf("%d of %d GiB and %d %% of its compute", card.Units, g.MemoryUnits(), card.Cores)
	default:
		return fmt.Sprintf("%d of %d GiB", card.Units, g.MemoryUnits())
	}
}

// mayBecomeKnown says whether looking again may tell which cards a pod holds: the
// kubelet does not say when it comes to know that.
func mayBecomeKnown(t deviceplugin.Taken) bool {
	return slices.ContainsFunc(t.Pods, func(p deviceplugin.Pod) bool { return len(p.Unknown) > 0 })
}

// afterDevicePlugin refuses the wish while a device plugin has been gone for less than
// pluginGone. One that an earlier process saw last has only just gone: after a reboot
// both start together.
func (p *publisher) afterDevicePlugin(node *nodeFacts, w *wish) error {
	if len(node.devicePlugin) > 0 {
		p.pluginLeft = time.Time{}
		return p.rememberDevicePlugin(true)
	}
	if !p.remembered.DevicePlugin {
		return nil
	}
	if p.pluginLeft.IsZero() {
		p.pluginLeft = p.clock.Now()
	}
	if p.clock.Since(p.pluginLeft) >= pluginGone {
		p.pluginLeft = time.Time{}
		return p.rememberDevicePlugin(false)
	}
	if w.refused == nil {
		w.refuse(fmt.Errorf("a device plugin served the same GPUs here until a moment ago: if it does not come back, they are offered in %s", pluginGone))
	}
	w.again = true
	return nil
}

// rememberDevicePlugin remembers whether a device plugin is here, and if none is, since
// when it cannot have given anything to a pod.
func (p *publisher) rememberDevicePlugin(there bool) error {
	if p.remembered.DevicePlugin == there {
		return nil
	}
	m := p.remembered
	m.DevicePlugin, m.DevicePluginLeft = there, time.Time{}
	if !there {
		m.DevicePluginLeft = p.now()
	}
	if err := p.memory.store(m); err != nil {
		return err
	}
	p.remembered = m
	p.left(m.DevicePluginLeft)
	return nil
}

// now is the time, as it is remembered.
func (p *publisher) now() time.Time { return p.clock.Now().UTC().Truncate(time.Second) }
