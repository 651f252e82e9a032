// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// sayEvery is how often it is logged that a controller still waits for its informers.
	sayEvery = 30 * time.Second
	// failing is for how long an informer that was refused its watch is taken for one
	// that still is: it tries again within half of that time.
	failing = 2 * time.Minute
)

// watched is an informer, and what went wrong last.
type watched struct {
	cache.SharedIndexInformer
	// what it holds, in words.
	what string

	mu     sync.Mutex
	failed error
	at     time.Time
}

// watch has the informer's errors remembered. It is to be called before the informer
// runs.
func watch(what string, informer cache.SharedIndexInformer) (*watched, error) {
	w := &watched{SharedIndexInformer: informer, what: what}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		w.mu.Lock()
		w.failed, w.at = err, time.Now()
		w.mu.Unlock()
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	if err != nil {
		return nil, fmt.Errorf("watch the errors of the cache of %s: %w", what, err)
	}
	return w, nil
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
		return fmt.Errorf("goes by %s of a while ago, which cannot be watched any more: %w", w.what, w.failed)
	}
	return nil
}

func refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

// problems are those of several informers.
type problems []error

// Error implements error.
func (p problems) Error() string {
	var texts []string
	for _, err := range p {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap is for errors.Is.
func (p problems) Unwrap() []error { return p }

// problem is what keeps the task from its work; nil where nothing does.
func (t task) problem() error {
	var found problems
	for _, w := range t.needs {
		if err := w.problem(); err != nil {
			found = append(found, err)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// synced waits until the informers of the task know what there is, and says now and
// then for which it waits. It is false where the context ended before that; an error
// says that it has taken as long as the deadline, which is none if it is zero.
func (t task) synced(ctx context.Context, deadline time.Duration) (bool, error) {
	var synced []cache.InformerSynced
	for _, w := range t.needs {
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
		err := t.problem()
		if err == nil {
			continue
		}
		if deadline > 0 && time.Since(start) >= deadline {
			return false, fmt.Errorf("loop %s has not begun after %s: it %w", t.Name(), deadline, err)
		}
		klog.FromContext(ctx).Error(err, "A loop does not work yet; the others do", "loop", t.Name(), "since", start)
	}
}

func waitFor(ctx context.Context, patience time.Duration, synced []cache.InformerSynced) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}
