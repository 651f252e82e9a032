// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// toldMost is how many pods of one namespace are told within RepeatAfter, so that one
// with thousands that wait leaves the others their Events: the queue on their way to
// the API server is one, and drops what it has no room for.
const toldMost = 100

// budget counts whom was told. It is for one goroutine at a time.
type budget map[string]*window

// window is a time of RepeatAfter in which pods of a namespace were told.
type window struct {
	since time.Time
	pods  map[types.UID]bool
}

// take says whether a pod may be told now. Who was told before, may be told again.
func (b budget) take(namespace string, pod types.UID, now time.Time) bool {
	w := b[namespace]
	if w == nil || now.Sub(w.since) >= RepeatAfter {
		maps.DeleteFunc(b, func(_ string, w *window) bool { return now.Sub(w.since) >= RepeatAfter })
		w = &window{now, map[types.UID]bool{}}
		b[namespace] = w
	}
	if !w.pods[pod] && len(w.pods) >= toldMost {
		return false
	}
	w.pods[pod] = true
	return true
}
