// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// refusedFor is for how long a pod is no victim after the cluster decided that it is not to be evicted: who decides
// about it may change their mind.
const refusedFor = 5 * time.Minute

// refusedPods are those that the cluster did not let be evicted, until when they are no
// victims.
type refusedPods map[types.UID]time.Time

// forget forgets those whose time is over, and those that are gone.
func (r refusedPods) forget(now time.Time, there func(types.UID) bool) {
	maps.DeleteFunc(r, func(uid types.UID, until time.Time) bool { return !now.Before(until) || !there(uid) })
}
