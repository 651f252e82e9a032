// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"errors"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// refusedFor is for how long a pod is no victim after a webhook or a policy of the cluster did
// not let it be evicted: whoever decides about it may change their mind.
const refusedFor = 5 * time.Minute

// refusedPods are those that the cluster did not let be evicted, until when they are no
// victims.
type refusedPods map[types.UID]time.Time

// forget forgets those whose time is over, and those that are gone.
func (r refusedPods) forget(now time.Time, there func(types.UID) bool) {
	maps.DeleteFunc(r, func(uid types.UID, until time.Time) bool { return !now.Before(until) || !there(uid) })
}

// byAdmission says whether a webhook or an admission policy refused an eviction, and not
// the API server itself for a reason that passes: a budget, a missing permission, a pod that
// is gone or another one.
func byAdmission(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	// Policies: "… denied request", webhooks: "… denied the request", whatever the code.
	said := status.Status().Message
	if strings.Contains(said, " denied request") || strings.Contains(said, " denied the request") {
		return true
	}
	switch status.Status().Reason {
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed:
		return true
	}
	return false
}
