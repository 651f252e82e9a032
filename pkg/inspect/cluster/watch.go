// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

// settle is how long changes are collected before they are shown: a pod that comes
// changes its claim several times.
const settle = 200 * time.Millisecond

// Watch calls show with what there is, and again after each change, until the
// context ends or show returns an error. What may be read is found out at the
// beginning; as in Read, what is missing is in the notes.
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
	w := r.watcher(allowed)
	dirty := make(chan struct{}, 1)
	if err := w.start(ctx, &wg, dirty, cancel); err != nil {
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
		select {
		case <-ctx.Done():
			return ended()
		case <-dirty:
		}
		select {
		case <-ctx.Done():
			return ended()
		case <-time.After(settle):
		}
		in := w.input(r.Node)
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
	allowed               scope
	slices, claims, nodes cache.SharedIndexInformer
}

func (r Reader) watcher(allowed scope) *watcher {
	w := &watcher{allowed: allowed}
	w.slices = resourceinformers.NewFilteredResourceSliceInformer(r.Client, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.FieldSelector = r.sliceFields() })
	if !allowed.noClaims {
		w.claims = resourceinformers.NewResourceClaimInformer(r.Client, allowed.claims, 0, cache.Indexers{})
	}
	if !allowed.noNodes {
		w.nodes = coreinformers.NewFilteredNodeInformer(r.Client, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
			if r.Node != "" {
				o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, r.Node).String()
			}
		})
	}
	return w
}

// start runs the informers until the context ends. Once they know what there is,
// dirty is told, and then of each change.
func (w *watcher) start(ctx context.Context, wg *sync.WaitGroup, dirty chan<- struct{},
	cancel context.CancelCauseFunc) error {
	changed := func() {
		select {
		case dirty <- struct{}{}:
		default: // told already
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	}
	var synced []cache.InformerSynced
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
		synced = append(synced, registration.HasSynced)
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		changed()
	}
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

func (w *watcher) input(node string) inspect.Input {
	return inspect.Input{
		Node: node, Notes: w.allowed.notes(), ClaimsUnknown: w.allowed.noClaims,
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
