package plugin

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// nodeEvents reports on the node, where "kubectl describe node" shows it. What
// was reported under a reason is not repeated until it changes or is cleared.
type nodeEvents interface {
	warn(reason, message string)
	normal(reason, message string)
	clear(reason string)
}

type recordedEvents struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference

	mu   sync.Mutex
	said map[string]string
}

func newNodeEvents(recorder record.EventRecorder, node *corev1.Node) *recordedEvents {
	return &recordedEvents{
		recorder: recorder,
		node:     &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		said:     map[string]string{},
	}
}

func (e *recordedEvents) warn(reason, message string) {
	if e.isNew(reason, message) {
		e.recorder.Event(e.node, corev1.EventTypeWarning, reason, message)
	}
}

func (e *recordedEvents) normal(reason, message string) {
	if e.isNew(reason, message) {
		e.recorder.Event(e.node, corev1.EventTypeNormal, reason, message)
	}
}

func (e *recordedEvents) clear(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.said, reason)
}

func (e *recordedEvents) isNew(reason, message string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.said[reason] == message {
		return false
	}
	e.said[reason] = message
	return true
}
