// SPDX-License-Identifier: Apache-2.0

package report

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// toldMost is how many pods of one namespace are told within a window, so that one
// with thousands that wait leaves the others their Events: the queue on their way to
// the API server is one, and drops what it has no room for.
const toldMost = 100

// Budget counts whom was told. It is for one goroutine at a time.
type Budget struct {
	length  time.Duration
	windows map[string]*window
}

// window is a time in which pods of a namespace were told.
type window struct {
	since time.Time
	pods  map[types.UID]bool
}

// NewBudget is one with windows of such a length.
func NewBudget(length time.Duration) *Budget {
	return &Budget{length: length, windows: map[string]*window{}}
}

// Take reports whether a pod may be told now. Who was told before, may be told again.
func (b *Budget) Take(namespace string, pod types.UID, now time.Time) bool {
	w := b.windows[namespace]
	if w == nil || now.Sub(w.since) >= b.length {
		maps.DeleteFunc(b.windows, func(_ string, w *window) bool { return now.Sub(w.since) >= b.length })
		w = &window{now, map[types.UID]bool{}}
		b.windows[namespace] = w
	}
	if !w.pods[pod] && len(w.pods) >= toldMost {
		return false
	}
	w.pods[pod] = true
	return true
}
