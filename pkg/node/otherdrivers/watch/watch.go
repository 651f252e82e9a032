// SPDX-License-Identifier: Apache-2.0

// Package watch keeps what other DRA drivers have of the node's GPUs: it watches what they publish
// of the node, asks the kubelet who has it, and remembers what is held after its driver is gone.
//
// The watch is narrowed by the API server to the slices of the node that are not this driver's, so
// where there are none it is one idle connection. The kubelet is asked, every few seconds, only
// where another driver has one of the GPUs, and once at the start: pods may have GPUs of a driver that is gone.
package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/news"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
	pods "github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/otherdrivers"
)

// askInterval is how often the watch asks the kubelet, if there is something to ask.
const askInterval = 5 * time.Second

// Kubelet tells which pods have devices of DRA drivers; podresources.Client is one.
type Kubelet interface {
	Claimed(ctx context.Context) ([]podresources.Claimed, error)
}

// Options are what a Watch works with.
type Options struct {
	Client   kubernetes.Interface
	NodeName string
	Kubelet  Kubelet
	// Pods know what device plugins gave to pods, which the Watch adds to.
	Pods pods.Pods
	// File is where it is kept which devices are held.
	File string
	// OnChange is called when GPUs may be other drivers' or not any more; OnUnread is told, as
	// long as the slices cannot be read, why; OnDamaged, that the file could not be read.
	OnChange            func()
	OnUnread, OnDamaged func(err error)
}

// Watch is the Pods of its Options, with what other drivers have.
type Watch struct {
	pods.Pods
	Options
	slices cache.SharedIndexInformer
	told   cache.ResourceEventHandlerRegistration
	// read is closed once all slices have been seen and the kubelet was asked.
	read informer.FirstRead
	// look receives a signal when the watch must ask the kubelet again.
	look chan struct{}

	// stored is what the file has, answered whether the kubelet has ever told who has what, and failures
	// are why it did not; they belong to Run.
	stored   map[otherdrivers.Device]string
	answered bool
	failures news.Teller

	mu        sync.Mutex
	owner     string
	machine   *gpu.Machine
	published []otherdrivers.Published
	kept      map[otherdrivers.Device]string
	held      otherdrivers.Held
}

// errNotAsked is for the time before the kubelet was asked.
var errNotAsked = errors.New("the kubelet has not been asked yet")

// New returns a Watch, which has to Run.
func New(ctx context.Context, o Options) (*Watch, error) {
	stored, damage, err := newKeptFile(o.File).open()
	if err != nil {
		return nil, err
	}
	if damage != nil {
		klog.FromContext(ctx).Error(damage, "A state file was damaged")
		o.OnDamaged(damage)
	}
	w := &Watch{Pods: o.Pods, Options: o, read: make(informer.FirstRead), look: make(chan struct{}, 1),
		machine: &gpu.Machine{}, stored: stored, kept: stored, held: otherdrivers.Held{Err: errNotAsked}}
	factory := informers.NewSharedInformerFactoryWithOptions(o.Client, 0, informers.WithTransform(w.slim),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) {
			l.FieldSelector = fields.AndSelectors(
				fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, o.NodeName),
				fields.OneTermNotEqualSelector(resourceapi.ResourceSliceSelectorDriver, v1alpha1.DriverName)).String()
		}))
	w.slices = factory.Resource().V1().ResourceSlices().Informer()
	if err := w.slices.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		if !w.read.IsDone() {
			o.OnUnread(err)
		}
	}); err != nil {
		return nil, fmt.Errorf("watch the ResourceSlices of node %s: %w", o.NodeName, err)
	}
	w.told, err = w.slices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.republished() }, DeleteFunc: func(any) { w.republished() },
		UpdateFunc: func(_, _ any) { w.republished() },
	})
	if err != nil {
		return nil, fmt.Errorf("watch the ResourceSlices of node %s: %w", o.NodeName, err)
	}
	return w, nil
}

// slice is what is kept of a ResourceSlice.
type slice struct {
	metav1.ObjectMeta
	devices []otherdrivers.Published
}

func (w *Watch) slim(object any) (any, error) {
	s, ok := object.(*resourceapi.ResourceSlice)
	if !ok {
		return object, nil
	}
	return &slice{ObjectMeta: metav1.ObjectMeta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion},
		devices: otherdrivers.Read(s, w.NodeName)}, nil
}

// republished notes what other drivers publish now.
func (w *Watch) republished() {
	var published []otherdrivers.Published
	for _, s := range informer.List[*slice](w.slices) {
		published = append(published, s.devices...)
	}
	w.update(func() { w.published = published })
}

// SetOwner tells which driver the node's GPUs are for, as its label says; empty if it does not.
func (w *Watch) SetOwner(driver string) { w.update(func() { w.owner = driver }) }

// update makes a change, and tells of it if it changes what other drivers have.
func (w *Watch) update(change func()) {
	w.mu.Lock()
	before, had, undecided := w.having(), w.onGPUs(), w.undecided()
	change()
	differs := undecided != w.undecided() || !reflect.DeepEqual(before, w.having())
	others := !maps.Equal(had, w.onGPUs())
	w.mu.Unlock()
	if others {
		signal.Send(w.look)
	}
	if differs && w.read.IsDone() {
		w.OnChange()
	}
}

func (w *Watch) onGPUs() map[otherdrivers.Device]string {
	return otherdrivers.OnGPUs(w.published, w.machine)
}

func (w *Watch) having() map[string]otherdrivers.GPU {
	return otherdrivers.Having(w.machine, w.onGPUs(), w.kept, w.held, w.owner)
}

// undecided reports whether only the kubelet's answer, which is awaited, tells whose GPUs are.
func (w *Watch) undecided() bool {
	return w.owner == v1alpha1.DriverName && errors.Is(w.held.Err, errNotAsked) && len(w.kept)+len(w.onGPUs()) > 0
}

// Run implements [pods.Pods].
func (w *Watch) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { w.Pods.Run(ctx) })
	wg.Go(func() { w.slices.RunWithContext(ctx) })
	select {
	case <-w.told.HasSyncedChecker().Done():
	case <-ctx.Done():
		return
	}
	more := w.ask(ctx)
	close(w.read)
	w.OnChange()
	for {
		var again <-chan time.Time
		if more {
			again = time.After(askInterval)
		}
		select {
		case <-again:
		case <-w.look:
		case <-ctx.Done():
			return
		}
		more = w.ask(ctx)
	}
}

// ask asks the kubelet who has devices on the node's GPUs, if there are any or it has never answered, and returns
// whether it is to be asked again.
func (w *Watch) ask(ctx context.Context) bool {
	w.mu.Lock()
	nothing := w.answered && len(w.kept) == 0 && len(w.onGPUs()) == 0
	if nothing {
		w.held = otherdrivers.Held{Err: errNotAsked}
	}
	w.mu.Unlock()
	if nothing {
		return false
	}
	claimed, err := w.Kubelet.Claimed(ctx)
	held := otherdrivers.Held{Pods: map[otherdrivers.Device][]string{}, Err: err}
	for _, c := range claimed {
		d := otherdrivers.Device{Driver: c.Driver, Pool: c.Pool, Name: c.Device}
		held.Pods[d] = append(held.Pods[d], c.Pod)
	}
	logger := klog.FromContext(ctx)
	if w.failures.IsError(err) {
		logger.Error(err, "Which pods have GPUs of other DRA drivers is not known, so all that these are known to have had "+
			"are taken to be held")
	}
	var keep map[otherdrivers.Device]string
	w.update(func() {
		w.held = held
		kept := w.kept
		if !w.answered {
			kept = otherdrivers.WithUnplaced(w.published, kept, held)
		}
		w.kept = otherdrivers.Keep(w.onGPUs(), kept, held)
		keep = w.kept
	})
	w.answered = w.answered || err == nil
	if maps.Equal(keep, w.stored) {
		return true
	}
	if err := newKeptFile(w.File).store(keep); err != nil {
		logger.Error(err, "A plugin that restarts would not know which GPUs other DRA drivers have, will try again")
		return true
	}
	w.stored = keep
	return true
}

// Observe implements [pods.Pods].
func (w *Watch) Observe(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	reserved, err := w.Pods.Observe(ctx, m)
	if err != nil {
		return reserved, err
	}
	if !w.read.IsDone() {
		return held.Reserved{}, held.ErrPodsUnread
	}
	reserved = w.plus(reserved, m)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.undecided() {
		return held.Reserved{}, held.ErrPodsUnread
	}
	return reserved, nil
}

// Reserved implements [pods.Pods]. Where the slices cannot be read in time it uses what is
// known from before: the API server, which granted the claim, has kept nothing from it.
func (w *Watch) Reserved(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	reserved, err := w.Pods.Reserved(ctx, m)
	if err != nil {
		return reserved, err
	}
	w.read.Await(ctx)
	return w.plus(reserved, m), nil
}

// Has reports whether the pod, named as namespace/name, has the GPU from another driver, as far as the kubelet
// told last.
func (w *Watch) Has(pod, uuid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.having()[uuid].Pods, pod)
}

// plus adds the GPUs of other drivers to what is reserved.
func (w *Watch) plus(reserved held.Reserved, m *gpu.Machine) held.Reserved {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m != nil && m != w.machine {
		had := w.onGPUs()
		w.machine = m
		if !maps.Equal(had, w.onGPUs()) {
			signal.Send(w.look)
		}
	}
	for uuid, has := range w.having() {
		reserved = reserved.OfDriver(uuid, has.Driver, has.Pods)
	}
	return reserved
}
