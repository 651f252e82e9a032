// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// createEvent is what is said of a new Event.
func (s *server) createEvent(event *corev1.Event) error {
	return s.validate(&user.DefaultInfo{Name: "system:kube-controller-manager"}, event, nil)
}

// The Warnings of a legacy pod whose template is about to be made are not stored; all
// others are.
func TestEventsOfTheFirstTries(t *testing.T) {
	s := newServer(t)
	const missing = `resourceclaimtemplate.resource.k8s.io "gpushare.mem.main.3" not found`
	first := func(change func(e *corev1.Event)) *corev1.Event {
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "e"}, Type: corev1.EventTypeWarning, Count: 1,
			Source: corev1.EventSource{Component: "resource_claim"}, Reason: "FailedResourceClaimCreation",
			Message: `PodResourceClaim gpushare: resource claim template "gpushare.mem.main.3": ` + missing,
		}
		change(e)
		return e
	}
	for name, test := range map[string]struct {
		change  func(e *corev1.Event)
		refused bool
	}{
		"the first try":   {func(*corev1.Event) {}, true},
		"the eighth":      {func(e *corev1.Event) { e.Count = 8 }, true},
		"the ninth":       {func(e *corev1.Event) { e.Count = 9 }, false},
		"without a count": {func(e *corev1.Event) { e.Count = 0 }, true},
		"for CPUs": {func(e *corev1.Event) {
			e.Message = `PodResourceClaim gpushare-cpus-10: resource claim template "gpushare.cpu.main.8": ` + missing
		}, true},
		"for nvidia.com/gpu": {func(e *corev1.Event) {
			e.Message = `PodResourceClaim gpushare-nvidia: resource claim template "gpushare.nvidia.main.1": ` + missing
		}, true},
		"of another's template": {
			func(e *corev1.Event) { e.Message = `PodResourceClaim gpu: resource claim template "mine": ` + missing }, false},
		"under another's claim": {func(e *corev1.Event) {
			e.Message = `PodResourceClaim gpushare: resource claim template "mine": ` + missing
		}, false},
		"of another kind":   {func(e *corev1.Event) { e.Message = `PodResourceClaim gpushare: exceeded quota: gpu` }, false},
		"for a quota":       {func(e *corev1.Event) { e.Message += `: exceeded quota: gpu` }, false},
		"of somebody else":  {func(e *corev1.Event) { e.Source.Component = "mine" }, false},
		"of another reason": {func(e *corev1.Event) { e.Reason = "FailedScheduling" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.createEvent(first(test.change)); (err != nil) != test.refused {
				t.Errorf("answer %v, refused should be %t", err, test.refused)
			}
		})
	}
}
