// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// leftoverMost is for how long the kubelet is refused a claim's release because its pods have processes. The kubelet
	// asks when the runtime has stopped all containers that it knows. It kills what is left in a pod's control group only
	// after its request has succeeded (kubelet, SyncTerminatingPod before SyncTerminatedPod): a process that the runtime
	// has lost would keep the pod Terminating for good.
	leftoverMost = time.Minute
	// refusalsKept is how long a refusal is remembered that the kubelet does not repeat.
	refusalsKept = time.Hour
)

// refusals are the claims that the kubelet was refused to release because their pods have processes, and since when.
type refusals struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	since map[types.UID]time.Time
}

func newRefusals(c clock.PassiveClock) *refusals {
	return &refusals{clock: c, since: map[types.UID]time.Time{}}
}

// refuse notes that processes keep a claim from being released, and reports whether they have done so for less than
// leftoverMost.
func (r *refusals) refuse(claim types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	maps.DeleteFunc(r.since, func(_ types.UID, since time.Time) bool { return now.Sub(since) > refusalsKept })
	since, known := r.since[claim]
	if !known {
		since = now
		r.since[claim] = now
	}
	return now.Sub(since) < leftoverMost
}

// forget ends the refusal of a claim.
func (r *refusals) forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.since, claim)
}
