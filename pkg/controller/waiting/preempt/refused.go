// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"errors"
	"maps"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// decided reports whether the API server refused an eviction by a decision that stands, a webhook's, a policy's or that
// of the permissions, and not for what passes: a budget, a pod that is gone or another one, or an answer that is late.
func decided(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	default:
		return code >= 400 && code < 500
	}
}
