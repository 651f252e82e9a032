// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// kind is a kind of objects in the API server.
type kind[L runtime.Object] interface {
	lister[L]
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// informer watches the objects of a kind that a field selector selects. After each attempt tried
// is told how it went: the informers of client-go tell their owner of some that fail and of none
// that succeeds.
func informer[L runtime.Object](client kubernetes.Interface, objects kind[L], example runtime.Object, selected string,
	tried func(context.Context, error)) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selected
			list, err := objects.List(ctx, options)
			tried(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selected
			changes, err := objects.Watch(ctx, options)
			tried(ctx, err)
			return changes, err
		},
	}, client), example, 0, cache.Indexers{})
}

// failures are the kinds that could not be listed or watched when that was last tried.
type failures struct {
	mu sync.Mutex
	of map[string]error
	// changed is told when the note is another.
	changed func()
}

// tried notes how it went with a kind. That the user ends the watch is no failure.
func (f *failures) tried(kind string) func(context.Context, error) {
	return func(ctx context.Context, err error) {
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		before := f.text()
		if err != nil {
			f.of[kind] = err
		} else {
			delete(f.of, kind)
		}
		other := f.text() != before
		f.mu.Unlock()
		if other {
			f.changed()
		}
	}
}

// notes tells the user of them.
func (f *failures) notes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text := f.text(); text != "" {
		return []string{text}
	}
	return nil
}

// text is one line, what matters most first: a terminal may be narrow. The URL of the request
// would push the reason out of it.
func (f *failures) text() string {
	if len(f.of) == 0 {
		return ""
	}
	kinds := slices.Sorted(maps.Keys(f.of))
	err := f.of[kinds[0]]
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	return fmt.Sprintf("Watching fails and is tried again: %v. What is shown of %s may be old.", err,
		strings.Join(kinds, ", "))
}
