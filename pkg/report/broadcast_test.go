// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// slowAPI is an API server that takes so long to write an Event.
func slowAPI(takes time.Duration) *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		time.Sleep(takes)
		return false, nil, nil
	})
	return client
}

func TestLastEventsOfAProcessAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := slowAPI(3 * time.Second)
		ctx, end := context.WithCancel(t.Context())
		b := report.NewBroadcast(ctx, client, corev1.EventSource{Component: "test"}, record.CorrelatorOptions{})
		for _, name := range []string{"n1", "n2"} {
			node := report.Node(name, types.UID(name))
			b.Recorder().Event(&node, corev1.EventTypeWarning, "Why", "it ends")
		}
		end()

		began := time.Now()
		b.Close(ctx, 10*time.Second)
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("it took %s, writing two Events takes 6s", took)
		}
		events, err := client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		expect.NoError(t, err)
		if len(events.Items) != 2 {
			t.Errorf("the API server has %d Events, want both: %+v", len(events.Items), events.Items)
		}
	})
}

func TestAPIServerThatTakesNoEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := report.NewBroadcast(t.Context(), slowAPI(time.Minute), corev1.EventSource{Component: "test"},
			record.CorrelatorOptions{})
		node := report.Node("n1", "uid")
		b.Recorder().Event(&node, corev1.EventTypeWarning, "Why", "one")

		began := time.Now()
		b.Close(t.Context(), 5*time.Second)
		expect.Equal(t, 5*time.Second, time.Since(began), "it took")
		time.Sleep(time.Minute) // Until the API server's answer, which nobody waits for.
	})
}
