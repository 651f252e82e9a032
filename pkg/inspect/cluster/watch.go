// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

// settle is how long changes are collected before they are shown: a pod that comes
// changes its claim several times.
const settle = 200 * time.Millisecond

// Watch calls show with what there is, and again after each change and every so often as Every
// says, until the context ends or show returns an error. What may be read is found out at the
// beginning; as in Read, what is missing is in the notes, and so is that watching fails, for as
// long as it does.
func (r Reader) Watch(ctx context.Context, show func(inspect.Input) error) error {
	in, allowed, err := r.read(ctx)
	if err != nil {
		return err
	}
	pods := &podReader{Reader: r}
	if err := pods.fill(ctx, &in); err != nil {
		return err
	}
	if err := show(in); err != nil {
		return err
	}
	user := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	w := r.watcher(allowed, in)
	if err := w.start(ctx, &wg, cancel); err != nil {
		return err
	}
	// ended is nil where it was the user who ended the watch.
	ended := func() error {
		if user.Err() != nil {
			return nil
		}
		return context.Cause(ctx)
	}
	for {
		var again <-chan time.Time
		if r.Every > 0 {
			again = time.After(r.Every)
		}
		select {
		case <-ctx.Done():
			return ended()
		case <-again:
		case <-w.dirty:
		}
		select {
		case <-ctx.Done():
			return ended()
		case <-time.After(settle):
		}
		in := w.input()
		if err := pods.fill(ctx, &in); ctx.Err() != nil {
			return ended()
		} else if err != nil {
			in.Notes = append(in.Notes, fmt.Sprintf("What pods hold without a claim is as it was before: %v.", err))
		}
		if err := show(in); err != nil {
			return err
		}
	}
}

// watcher holds what there is. Its informers are nil for what may not be read.
type watcher struct {
	allowed scope
	// first is what was read before, which is what there is until all of synced know more.
	first                 inspect.Input
	synced                []cache.InformerSynced
	slices, claims, nodes cache.SharedIndexInformer
	failures              failures
	// dirty is told that there is something else to show.
	dirty chan struct{}
}

func (r Reader) watcher(allowed scope, first inspect.Input) *watcher {
	w := &watcher{allowed: allowed, first: first, dirty: make(chan struct{}, 1)}
	w.failures = failures{of: map[string]error{}, changed: w.changed}
	w.slices = informer(r.Client, r.Client.ResourceV1().ResourceSlices(), &resourceapi.ResourceSlice{}, r.sliceFields(),
		w.failures.tried("resourceslices"))
	if !allowed.noClaims {
		w.claims = informer(r.Client, r.Client.ResourceV1().ResourceClaims(allowed.claims), &resourceapi.ResourceClaim{}, "",
			w.failures.tried("resourceclaims"))
	}
	if !allowed.noNodes {
		selected := fields.Everything()
		if r.Node != "" {
			selected = fields.OneTermEqualSelector(metav1.ObjectNameField, r.Node)
		}
		w.nodes = informer(r.Client, r.Client.CoreV1().Nodes(), &corev1.Node{}, selected.String(), w.failures.tried("nodes"))
	}
	return w
}

// changed says that there is something else to show.
func (w *watcher) changed() { signal.Send(w.dirty) }

// start runs the informers until the context ends. Once they know what there is,
// dirty is told, and then of each change.
func (w *watcher) start(ctx context.Context, wg *sync.WaitGroup, cancel context.CancelCauseFunc) error {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.changed() }, UpdateFunc: func(any, any) { w.changed() },
		DeleteFunc: func(any) { w.changed() },
	}
	for _, informer := range []cache.SharedIndexInformer{w.slices, w.claims, w.nodes} {
		if informer == nil {
			continue
		}
		if err := informer.SetWatchErrorHandlerWithContext(giveUpIfForbidden(cancel)); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		w.synced = append(w.synced, registration.HasSynced)
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
	wg.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), w.synced...) {
			w.changed()
		}
	})
	return nil
}

// giveUpIfForbidden ends the watch where it would be tried in vain for ever. What
// else goes wrong, such as a lost connection, the informers try again.
func giveUpIfForbidden(cancel context.CancelCauseFunc) cache.WatchErrorHandlerWithContext {
	return func(ctx context.Context, reflector *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			cancel(fmt.Errorf("watching needs the permissions list and watch: leave --watch out, or use the program watch(1) "+
				"instead: %w", err))
			return
		}
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	}
}

func (w *watcher) input() inspect.Input {
	notes := append(w.allowed.notes(), w.failures.notes()...)
	if slices.ContainsFunc(w.synced, func(synced cache.InformerSynced) bool { return !synced() }) {
		in := w.first
		in.Notes = notes
		return in
	}
	return inspect.Input{
		Node: w.first.Node, Notes: notes, ClaimsUnknown: w.allowed.noClaims,
		Slices: allocated[*resourceapi.ResourceSlice](w.slices),
		Claims: allocated[*resourceapi.ResourceClaim](w.claims),
		Nodes:  allocated[*corev1.Node](w.nodes),
	}
}

func allocated[T any](informer cache.SharedIndexInformer) []T {
	if informer == nil {
		return nil
	}
	var out []T
	for _, object := range informer.GetStore().List() {
		if item, ok := object.(T); ok {
			out = append(out, item)
		}
	}
	return out
}
