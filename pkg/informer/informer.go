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

// FirstRead is closed once all watched objects have been read.
type FirstRead chan struct{}

// IsDone reports whether the objects have been read.
func (r FirstRead) IsDone() bool {
	select {
	case <-r:
		return true
	default:
		return false
	}
}

// readLimit is how long a claim waits for the watched objects: the kubelet tries a refused claim again only after ten
// seconds or more.
const readLimit = 5 * time.Second

// Await waits until the objects have been read, for readLimit at most.
func (r FirstRead) Await(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	select {
	case <-r:
	case <-limit.Done():
	}
}
