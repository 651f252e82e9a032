// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A plugin writes Events of its own node, and of pods in its own name, in whatever
// namespace the driver is installed.
func TestEventsOfThePlugin(t *testing.T) {
	s := newServer(t)
	node := func(name string) corev1.ObjectReference { return corev1.ObjectReference{Kind: "Node", Name: name} }
	pod := corev1.ObjectReference{Kind: "Pod", Namespace: team, Name: "p"}
	claim := corev1.ObjectReference{Kind: "ResourceClaim", Namespace: team, Name: "c"}
	event := func(namespace, host string, about corev1.ObjectReference) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "e"}, InvolvedObject: about,
			Source: corev1.EventSource{Component: "gpu-kubelet-plugin", Host: host},
		}
	}
	for name, test := range map[string]struct {
		event *corev1.Event
		taken bool
	}{
		"its node":                 {event("default", "n1", node("n1")), true},
		"a pod":                    {event(team, "n1", pod), true},
		"another node":             {event("default", "n1", node("n2")), false},
		"another node's name":      {event("default", "n2", node("n2")), false},
		"a pod, as another node":   {event(team, "n2", pod), false},
		"a pod, as nobody":         {event(team, "", pod), false},
		"a pod elsewhere":          {event("default", "n1", pod), false},
		"its node, in a namespace": {event(team, "n1", node("n1")), false},
		"a claim":                  {event(team, "n1", claim), true},
		"a claim, as another node": {event(team, "n2", claim), false},
		"something else of a team's": {
			event(team, "n1", corev1.ObjectReference{Kind: "Service", Namespace: team, Name: "c"}), false},
	} {
		for _, namespace := range []string{metav1.NamespaceSystem, "elsewhere"} {
			who := account(namespace, "gpu-kubelet-plugin", "n1")
			err := s.validate(who, test.event, nil)
			expect.Error(t, err, ifRefused(!test.taken, "may only write Events of that node"))
			// A series is a change of the first Event of it.
			err = s.validate(who, test.event, test.event.DeepCopy())
			if (err == nil) != test.taken {
				t.Errorf("%s, again: %v", name, err)
			}
		}
	}
	// Nobody else is bound by it, and a token of no pod is good for nothing.
	if err := s.validate(account(team, "default", ""), event(team, "", pod), nil); err != nil {
		t.Errorf("an Event of somebody else: %v", err)
	}
	err := s.validate(account(metav1.NamespaceSystem, "gpu-kubelet-plugin", ""), event("default", "n1", node("n1")), nil)
	expect.Error(t, err, "names no node")
}
