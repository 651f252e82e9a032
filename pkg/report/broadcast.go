// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// Broadcast writes Events to the API server. Unlike [record.EventBroadcaster], which
// forgets at its end what is still on its way, it can wait for that: the Event that says
// why a process ends is the last one, and the one that counts.
type Broadcast struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	sink        *lastSink
}

// NewBroadcast writes Events of a source until Close, also when the context ends before.
func NewBroadcast(ctx context.Context, client kubernetes.Interface, source corev1.EventSource,
	limits record.CorrelatorOptions) *Broadcast {
	b := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)), record.WithCorrelatorOptions(limits))
	sink := &lastSink{
		EventSink: &typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events(metav1.NamespaceAll)},
		object:    uuid.NewUUID(), reached: make(chan struct{}),
	}
	b.StartRecordingToSink(sink)
	return &Broadcast{broadcaster: b, recorder: b.NewRecorder(scheme.Scheme, source), sink: sink}
}

// Recorder is for Events of at most [Most] bytes each.
func (b *Broadcast) Recorder() record.EventRecorder { return Bounded(b.recorder) }

// Close returns when what was recorded before is written, or rejected, and at the latest after
// a while. It does so, too, when the context has ended, as it has at the end of a process.
func (b *Broadcast) Close(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	b.recorder.Event(&corev1.ObjectReference{UID: b.sink.object}, corev1.EventTypeNormal, "Last", "")
	select {
	case <-b.sink.reached:
	case <-ctx.Done():
		klog.FromContext(ctx).Error(context.Cause(ctx), "The API server did not take the last Events")
	}
	b.broadcaster.Shutdown()
}

// lastSink knows by an Event of an object that nobody has that all Events before it have
// been dealt with: they come one by one.
type lastSink struct {
	record.EventSink
	object  types.UID
	once    sync.Once
	reached chan struct{}
}

// Create implements [record.EventSink].
func (s *lastSink) Create(event *corev1.Event) (*corev1.Event, error) {
	if event.InvolvedObject.UID != s.object {
		return s.EventSink.Create(event)
	}
	s.once.Do(func() { close(s.reached) })
	return event, nil
}
