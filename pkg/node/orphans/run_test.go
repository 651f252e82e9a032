// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
)

// A claim is looked at soon after a pod that used it was deleted, until that has succeeded, and not only when all are.
func TestClaimOfADeletedPodIsLookedAtSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		s := newSweeps(t)
		if _, err := s.Prepare(ctx, wholeGPU("u1", 1, "p1")); err != nil {
			t.Fatal(err)
		}
		s.running["p1"], s.api.claims = true, []*resourceapi.ResourceClaim{wholeGPU("u1", 1, "p1")}
		picture := pods.New(s)
		s.options.Pods, s.options.Clock = picture, clock.RealClock{}
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
		time.Sleep(sweepAgain)
		told := func(want ...types.UID) {
			t.Helper()
			synctest.Wait()
			if _, got := s.uids(t); !slices.Equal(got, want) {
				t.Errorf("told to be orphans are %q, want %q", got, want)
			}
		}
		told()
		s.api.claims, s.api.away = nil, map[string]bool{"claim-u1": true}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: "p1"},
			Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu",
				ResourceClaimName: ptr.To("claim-u1")}}}}
		picture.Handler().OnAdd(pod, true)
		picture.Handler().OnDelete(pod)
		time.Sleep(2 * sweepSoon)
		told()
		s.api.away = nil
		time.Sleep(2*sweepAgain + sweepSoon)
		told("u1")
	})
}
