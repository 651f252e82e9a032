// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
)

// A tenant's annotation of 250 KB is not to fill the API server with Events.
func TestMessagesAreBounded(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	pod := &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p", UID: "uid"}
	long := "reads \x1b[2J\n" + strings.Repeat("x", 250_000)
	New(recorder, clocktesting.NewFakePassiveClock(time.Unix(0, 0))).Warn(*pod, "Reason", long)
	b := Bounded(recorder)
	b.Event(pod, corev1.EventTypeWarning, "Reason", long)
	b.Eventf(pod, corev1.EventTypeWarning, "Reason", "%s", long)
	b.AnnotatedEventf(pod, nil, corev1.EventTypeWarning, "Reason", "%s", long)
	for range 4 {
		got := strings.TrimPrefix(<-recorder.Events, "Warning Reason ")
		if len(got) > Most || !strings.HasPrefix(got, `reads \x1b[2J xxx`) || !strings.HasSuffix(got, " bytes more)") {
			t.Errorf("told %d bytes: %.40s", len(got), got)
		}
	}
}
