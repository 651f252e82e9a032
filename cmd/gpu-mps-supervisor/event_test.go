package main

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestReportOnceForEachFailure(t *testing.T) {
	client := fake.NewClientset()
	for _, failure := range []string{"read-only file system", "read-only file system", "another supervisor runs"} {
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
	}
}
