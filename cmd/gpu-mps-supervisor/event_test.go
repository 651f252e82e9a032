package main

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestReportOnceForEachFailure(t *testing.T) {
	const stale = "read-only file system"
	client := fake.NewClientset()
	if err := report(t.Context(), client, "n1", errors.New(stale)); err != nil {
		t.Fatal(err)
	}
	made, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(made.Items) != 1 {
		t.Fatalf("%v, %v", made, err)
	}
	made.Items[0].LastTimestamp = metav1.Time{}
	if _, err := client.CoreV1().Events(metav1.NamespaceDefault).Update(t.Context(), &made.Items[0], metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, failure := range []string{stale, "another supervisor runs"} {
		if err := report(t.Context(), client, "n1", errors.New(failure)); err != nil {
			t.Fatal(err)
		}
	}
	events, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(events.Items) != 2 {
		t.Errorf("%d Events, want one for each failure", len(events.Items))
	}
	for _, event := range events.Items {
		if event.InvolvedObject.Kind != "Node" || event.InvolvedObject.Name != "n1" || event.Reason != reasonFailed {
			t.Errorf("Event %+v", event)
		}
		if event.LastTimestamp.IsZero() {
			t.Errorf("Event %q does not say that it happened again", event.Message)
		}
	}
}
