// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
)

// untilGone is an API server that has claim u1, then gives no answer for a while, and then no longer has the claim.
type untilGone struct {
	preparetest.Cluster
	begin time.Time
}

const away, gone = sweepAgain, sweepAgain + 2*sweepSoon

func (u untilGone) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	switch since := time.Since(u.begin); {
	case since < away:
		return wholeGPU("u1", 1, "p1"), nil
	case since < gone:
		return nil, errors.New("API server is away")
	default:
		return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
	}
}

// The driver checks a claim soon after a pod that used it was deleted, and again until it succeeds, without waiting for
// the check of all claims.
func TestClaimOfADeletedPodIsLookedAtSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		s := newSweeps(t)
		s.takes(t, wholeGPU("u1", 1, "p1"))
		s.running["p1"] = true
		begin, told := time.Now(), make(chan time.Duration, 1)
		s.options.Pods, s.options.Clock, s.options.Cluster = pods.New(s), clock.RealClock{}, untilGone{begin: begin}
		s.options.OnOrphans = func(found []Orphan) {
			if len(found) == 0 {
				return
			}
			select {
			case told <- time.Since(begin):
			default:
			}
		}
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx)
		}()
		defer func() {
			cancel()
			<-ended
		}()
		time.Sleep(away)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: "p1"},
			Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu",
				ResourceClaimName: ptr.To("claim-u1")}}}}
		handler := s.options.Pods.Handler()
		handler.OnAdd(pod, true)
		handler.OnDelete(pod)
		// One check is while the API server is away, one finds the claim gone, and one more reports it.
		if after := <-told; after > gone+2*sweepAgain {
			t.Errorf("it is told after %s that the claim is an orphan", after)
		}
	})
}
