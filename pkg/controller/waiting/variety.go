// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// variety is what nodes offer that are alike, in the order of the devices' names: plugins change the order of what they
// publish with each pod, and what suits a request does not depend on it.
type variety struct {
	devices []resourceapi.Device
	// offered are the devices of each slice of the node that it was first read of. Nodes of one shape share them.
	offered [][]resourceapi.Device
}

// varietyOf is the one of some devices, and whether it is known already.
func varietyOf(known []*variety, offered [][]resourceapi.Device) (*variety, bool) {
	for _, v := range known {
		if slices.EqualFunc(v.offered, offered, shared) {
			return v, true
		}
	}
	devices := slices.Concat(offered...)
	slices.SortFunc(devices, func(a, b resourceapi.Device) int { return cmp.Compare(a.Name, b.Name) })
	for _, v := range known {
		if equality.Semantic.DeepEqual(v.devices, devices) {
			return v, true
		}
	}
	return &variety{devices, offered}, false
}

// shared reports whether two slices are the same part of the same array.
func shared(a, b []resourceapi.Device) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// varieties are those that nodes offer now, in the order in which they came.
func (f *fleet) varieties() []*variety {
	offered := map[*variety]bool{}
	for _, n := range f.known {
		offered[n.variety] = true
	}
	f.seen = slices.DeleteFunc(f.seen, func(v *variety) bool { return !offered[v] })
	return f.seen
}
