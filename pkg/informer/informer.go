// SPDX-License-Identifier: Apache-2.0

// Package informer is what the plugin and the controllers' cache do with informers.
package informer

import "k8s.io/client-go/tools/cache"

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
