// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Who changes the ConfigMap sees on the controller's pods that it stays as it was, and why: kubectl describe pod lists
// Events of the pod's UID.
func TestRefusedSettingsAreToldOnThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gpus", Name: "controller-0",
			UID: "uid-0"}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		refused := make(chan error)
		done := make(chan struct{})
		go func() { defer close(done); tellRefused(ctx, client, "gpus", "controller-0", refused) }()
		for _, err := range []error{errors.New(`CLASS_GRACE="-5m": a time cannot be negative`),
			errors.New(`CLASS_GRACE="-5m": a time cannot be negative`), nil} {
			refused <- err
		}
		synctest.Wait()
		told, err := client.CoreV1().Events("gpus").List(ctx, metav1.ListOptions{})
		if err != nil || len(told.Items) != 1 {
			t.Fatalf("%d Events, want one of what was refused; %v", len(told.Items), err)
		}
		e := told.Items[0]
		if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.UID != "uid-0" || e.Type != corev1.EventTypeWarning ||
			e.Reason != v1alpha1.ReasonSettingsRefused {
			t.Errorf("told %s %s of %+v", e.Type, e.Reason, e.InvolvedObject)
		}
		expect.Says(t, e.Message, `CLASS_GRACE="-5m": a time cannot be negative`, "ConfigMap gpu-compat-controller",
			"goes on with the settings from before")
		// It was right meanwhile.
		refused <- errors.New(`CLASS_GRACE="-5m": a time cannot be negative`)
		cancel()
		<-done
		told, err = client.CoreV1().Events("gpus").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(told.Items) != 1 || told.Items[0].Count != 2 {
			t.Errorf("%+v, want the Event told a second time; %v", told.Items, err)
		}
	})
}
