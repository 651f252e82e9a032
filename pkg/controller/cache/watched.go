// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// sayEvery is how often it is logged that a controller still waits for its parts.
	sayEvery = 30 * time.Second
	// failing is for how long an informer that was refused its watch is taken for one
	// that still is: it tries again within half of that time.
	failing = 2 * time.Minute
)

// watched is an informer, and what went wrong last.
type watched struct {
	toolscache.SharedIndexInformer
	// what it holds, in words, and slim what of each; nil for all.
	what string
	slim toolscache.TransformFunc
	// handlers are called one after the other, those that wait apart from the others.
	handlers map[bool]*handlers

	mu     sync.Mutex
	failed error
	at     time.Time
}

// handlers are one listener of an informer. Each listener has goroutines of its own, which every event wakes.
type handlers []toolscache.ResourceEventHandlerFuncs

// OnAdd implements cache.ResourceEventHandler.
func (h *handlers) OnAdd(object any, isInInitialList bool) {
	for _, each := range *h {
		each.OnAdd(object, isInInitialList)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *handlers) OnUpdate(before, after any) {
	for _, each := range *h {
		each.OnUpdate(before, after)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (h *handlers) OnDelete(object any) {
	for _, each := range *h {
		each.OnDelete(object)
	}
}

// on has a handler called, which may wait.
func (w *watched) on(waits bool, h toolscache.ResourceEventHandlerFuncs) error {
	if with := w.handlers[waits]; with != nil {
		*with = append(*with, h)
		return nil
	}
	first := &handlers{h}
	w.handlers[waits] = first
	_, err := w.AddEventHandler(first)
	return err
}

// noteError is a cache.WatchErrorHandlerWithContext.
func (w *watched) noteError(ctx context.Context, r *toolscache.Reflector, err error) {
	w.mu.Lock()
	w.failed, w.at = err, time.Now()
	w.mu.Unlock()
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
}

// problem is why what the informer holds is not what there is; nil where it is. An API
// server that is away for a while is none, once the informer has synced: one that
// refuses is.
func (w *watched) problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.HasSynced() && w.failed != nil:
		return fmt.Errorf("waits for %s, which cannot be listed: %w", w.what, w.failed)
	case !w.HasSynced():
		return fmt.Errorf("waits for %s, which are not listed yet", w.what)
	case refuses(w.failed) && time.Since(w.at) < failing:
		return fmt.Errorf("uses %s of a while ago, which cannot be watched any more: %w", w.what, w.failed)
	}
	return nil
}

func refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

// Problem is what keeps the reader from what it asked for; nil where nothing does.
func (r *Reader) Problem() error {
	var found error
	for _, w := range r.needs {
		switch err := w.problem(); {
		case found == nil:
			found = err
		case err != nil:
			found = fmt.Errorf("%w; %w", found, err)
		}
	}
	return found
}

// Synced reports whether all that the reader asked for is listed.
func (r *Reader) Synced() bool {
	return !slices.ContainsFunc(r.needs, func(w *watched) bool { return !w.HasSynced() })
}

// WaitForSync waits until all that the reader asked for is listed, and logs now and then, for the
// loop of that name, for what it waits. It is false where the context ended before that; an error
// says that it has taken as long as the deadline, which is none if it is zero.
func (r *Reader) WaitForSync(ctx context.Context, loop string, deadline time.Duration) (bool, error) {
	var synced []toolscache.InformerSynced
	for _, w := range r.needs {
		synced = append(synced, w.HasSynced)
	}
	start := time.Now()
	for {
		patience := sayEvery
		if deadline > 0 {
			patience = min(patience, deadline-time.Since(start))
		}
		if waitFor(ctx, patience, synced) {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, nil
		}
		err := r.Problem()
		if err == nil {
			continue
		}
		if deadline > 0 && time.Since(start) >= deadline {
			return false, fmt.Errorf("loop %s has not begun after %s: it %w", loop, deadline, err)
		}
		klog.FromContext(ctx).Error(err, "A loop does not work yet; the others do", "loop", loop, "since", start)
	}
}

func waitFor(ctx context.Context, patience time.Duration, synced []toolscache.InformerSynced) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return toolscache.WaitForCacheSync(ctx.Done(), synced...)
}
