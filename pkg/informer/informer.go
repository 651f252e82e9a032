// SPDX-License-Identifier: Apache-2.0

// Package informer is what the plugin and the controllers' cache do with informers.
package informer

import (
	"context"
	"time"

	"k8s.io/client-go/tools/cache"
)

// List returns what the informer holds of a type.
func List[T any](informer cache.SharedIndexInformer) []T {
	var out []T
	for _, object := range informer.GetStore().List() {
		if t, ok := object.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// Object is what an event handler was given, or, where its end was missed, what was
// last known of it.
func Object(given any) any {
	if tombstone, ok := given.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return given
}

// FirstRead is closed when what is watched from then on has been read once.
type FirstRead chan struct{}

// IsDone reports whether it is.
func (r FirstRead) IsDone() bool {
	select {
	case <-r:
		return true
	default:
		return false
	}
}

// readLimit is how long a claim waits for what is watched: one that is refused is not tried again by the kubelet for
// ten seconds and more.
const readLimit = 5 * time.Second

// Await waits for it, for a moment.
func (r FirstRead) Await(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	select {
	case <-r:
	case <-limit.Done():
	}
}
