// SPDX-License-Identifier: Apache-2.0

// Package informer is what the controllers, and the plugin, do with informers: listing by type,
// and what a node's objects are found by.
package informer

import (
	"fmt"

	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

// byNode is an index of ResourceSlices.
const byNode = "node"

// List returns what the informer holds of a type.
func List[T any](informer cache.SharedIndexInformer) []T {
	return typed[T](informer.GetStore().List())
}

func typed[T any](objects []any) []T {
	var out []T
	for _, object := range objects {
		if t, ok := object.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// Get returns what the informer holds of a type by that key, and whether there is something.
func Get[T any](informer cache.SharedIndexInformer, key string) (T, bool, error) {
	var none T
	object, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		return none, false, err
	}
	t, ok := object.(T)
	if !ok {
		return none, false, fmt.Errorf("%s is a %T in the cache, not a %T", key, object, none)
	}
	return t, true, nil
}

// Object is what an event handler was given, or, where its end was missed, what was
// last known of it.
func Object(given any) any {
	if tombstone, ok := given.(cache.DeletedFinalStateUnknown); ok {
		return tombstone.Obj
	}
	return given
}

// IndexSlices makes an informer of ResourceSlices (*view.Slice) know them by node.
// Several loops may ask for it. The informer must not run yet.
func IndexSlices(slices cache.SharedIndexInformer) error {
	if _, there := slices.GetIndexer().GetIndexers()[byNode]; there {
		return nil
	}
	if err := slices.AddIndexers(cache.Indexers{byNode: nodeOf}); err != nil {
		return fmt.Errorf("index the ResourceSlices by node: %w", err)
	}
	return nil
}

// SlicesOf returns the ResourceSlices of a node, of an informer with IndexSlices.
func SlicesOf(slices cache.SharedIndexInformer, node string) ([]*view.Slice, error) {
	objects, err := slices.GetIndexer().ByIndex(byNode, node)
	if err != nil {
		return nil, fmt.Errorf("look up the ResourceSlices of node %s: %w", node, err)
	}
	return typed[*view.Slice](objects), nil
}

func nodeOf(object any) ([]string, error) {
	if slice, ok := object.(*view.Slice); ok && slice.Node != "" {
		return []string{slice.Node}, nil
	}
	return nil, nil
}
