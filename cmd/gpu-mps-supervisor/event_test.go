// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

func TestReportOnceForEachFailure(t *testing.T) {
	const stale = "read-only file system"
	client := fake.NewClientset()
	expect.NoError(t, report(t.Context(), client, "n1", errors.New(stale)))
	events := client.CoreV1().Events(metav1.NamespaceDefault)
	made, err := events.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(made.Items) != 1 {
		t.Fatalf("%v, %v", made, err)
	}
	made.Items[0].LastTimestamp = metav1.Time{}
	apitest.Update(t, client, &made.Items[0])
	for _, failure := range []string{stale, "another supervisor runs"} {
		expect.NoError(t, report(t.Context(), client, "n1", errors.New(failure)))
	}
	told, err := events.List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	expect.Equal(t, 2, len(told.Items), "Events")
	for _, event := range told.Items {
		if event.InvolvedObject.Kind != "Node" || event.InvolvedObject.Name != "n1" ||
			event.Reason != v1alpha1.ReasonMPSSupervisorFailed {
			t.Errorf("Event %+v", event)
		}
		if event.LastTimestamp.IsZero() {
			t.Errorf("Event %q does not say that it happened again", event.Message)
		}
	}
}

// An API server that starts again is back before the supervisor gives up on it; one
// that refuses is not asked twice.
func TestReportToAnAPIServerThatIsAway(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("events"), "n1", errors.New("no role"))
	for _, tt := range []struct {
		name         string
		answer, want error
		asked        int
	}{
		{"away for a moment", errors.New("connection refused"), nil, 2},
		{"starting", apierrors.NewServiceUnavailable("not ready"), nil, 2},
		{"refuses", forbidden, forbidden, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				asked := 0
				client.PrependReactor("create", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
					asked++
					return asked == 1, nil, tt.answer
				})
				expect.ErrorIs(t, report(t.Context(), client, "n1", errors.New("read-only file system")), tt.want)
				expect.Equal(t, tt.asked, asked, "times asked")
			})
		})
	}
}
