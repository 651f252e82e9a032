// SPDX-License-Identifier: Apache-2.0

// Package report tells in Events what was found, without repeating itself.
package report

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// repeatAfter keeps what still holds in sight: the API server forgets Events
// after an hour.
const repeatAfter = 30 * time.Minute

// Reporter records Events. It is safe for concurrent use.
type Reporter struct {
	recorder record.EventRecorder
	clock    clock.PassiveClock
	repeat   time.Duration

	mu   sync.Mutex
	said map[types.UID]map[string]said
}

// said is what was told last under a reason.
type said struct {
	message string
	at      time.Time
}

// New makes a Reporter. Its messages are Bounded.
func New(recorder record.EventRecorder, c clock.PassiveClock, options ...Option) *Reporter {
	r := &Reporter{recorder: Bounded(recorder), clock: c, repeat: repeatAfter, said: map[types.UID]map[string]said{}}
	for _, option := range options {
		option(r)
	}
	return r
}

// Option changes what a Reporter does.
type Option func(*Reporter)

// RepeatAfter sets after how long what still holds is told again, instead of half
// an hour.
func RepeatAfter(d time.Duration) Option { return func(r *Reporter) { r.repeat = d } }

// Node is what Events of a node refer to.
func Node(name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
}

// Pod is what Events of a pod refer to.
func Pod(namespace, name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: uid}
}

// Claim returns a reference to a ResourceClaim.
func Claim(namespace, name string, uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
		Namespace: namespace, Name: name, UID: uid}
}

// Warn tells that something is not as it should be; Normal, that something is
// worth knowing. What was told of an object under a reason is told again when the
// message changes, when it was cleared meanwhile, and every half an hour or as
// RepeatAfter says.
func (r *Reporter) Warn(object corev1.ObjectReference, reason, message string) {
	r.tell(object, corev1.EventTypeWarning, reason, message)
}

// Normal: see Warn.
func (r *Reporter) Normal(object corev1.ObjectReference, reason, message string) {
	r.tell(object, corev1.EventTypeNormal, reason, message)
}

// WarnOf is Warn with a message whose details come and go: it is told again when what it is
// about changes.
func (r *Reporter) WarnOf(object corev1.ObjectReference, reason, about, message string) {
	if r.isNew(object.UID, reason, about) {
		r.recorder.Event(&object, corev1.EventTypeWarning, reason, message)
	}
}

// Told reports whether the object was told something under the reason that was not cleared.
func (r *Reporter) Told(uid types.UID, reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, told := r.said[uid][reason]
	return told
}

// Clear says that what was told of the object under the reason does not hold any
// more.
func (r *Reporter) Clear(uid types.UID, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.said[uid], reason)
	if len(r.said[uid]) == 0 {
		delete(r.said, uid)
	}
}

// Forget is for an object that is gone.
func (r *Reporter) Forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.said, uid)
}

func (r *Reporter) tell(object corev1.ObjectReference, eventType, reason, message string) {
	if r.isNew(object.UID, reason, message) {
		r.recorder.Event(&object, eventType, reason, message)
	}
}

func (r *Reporter) isNew(uid types.UID, reason, message string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if before, ok := r.said[uid][reason]; ok && before.message == message && now.Sub(before.at) < r.repeat {
		return false
	}
	if r.said[uid] == nil {
		r.said[uid] = map[string]said{}
	}
	r.said[uid][reason] = said{message, now}
	return true
}
