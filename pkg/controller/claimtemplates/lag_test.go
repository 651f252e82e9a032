// SPDX-License-Identifier: Apache-2.0

package claimtemplates

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A template is as late as the oldest of the pods that waited for it.
func TestLag(t *testing.T) {
	var lags []time.Duration
	// The clock of the controller has no part in it.
	k := &reconciler{Config: Config{Clock: clocktesting.NewFakePassiveClock(time.Unix(7, 0)),
		Lag: func(lag time.Duration) { lags = append(lags, lag) }}}
	made := metav1.Unix(100, 0)
	var pods []*corev1.Pod
	for _, created := range []int64{97, 95, 99} {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Unix(created, 0)}})
	}
	k.tellLag(pods, made)
	k.tellLag(nil, made)
	k.tellLag([]*corev1.Pod{{}}, made)
	expect.Equal(t, []time.Duration{5 * time.Second}, lags, "lags told")
}
