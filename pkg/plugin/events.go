package plugin

import (
	"sync"
	"time"

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
	said map[string]said
}

// said is what was reported last under a reason.
type said struct {
	message string
	at      time.Time
}

// repeatAfter keeps what still holds in sight: the API server forgets Events
// after an hour.
const repeatAfter = 30 * time.Minute

func newNodeEvents(recorder record.EventRecorder, node *corev1.Node) *recordedEvents {
	return &recordedEvents{
		recorder: recorder,
		node:     &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		said:     map[string]said{},
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
	now := time.Now()
	if before := e.said[reason]; before.message == message && now.Sub(before.at) < repeatAfter {
		return false
	}
	e.said[reason] = said{message, now}
	return true
}
