// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Moment is an event in the life of a pod.
type Moment string

const (
	// Nominated means that gpu-compat-controller has nominated a node.
	Nominated Moment = "nominated"
	// Scheduled means that the pod has a node.
	Scheduled Moment = "scheduled"
	// Refused means that the scheduler has tried the nodes and found none.
	Refused Moment = "refused"
	// Started means that an Event of the kubelet reports the container as started.
	Started Moment = "started"
	// Running is the phase in the pod's status, which the kubelet updates once a second.
	Running Moment = "running"
	// Gone means that the pod was deleted.
	Gone Moment = "gone"
)

// Pod is a pod that was made.
type Pod struct {
	Name    string
	Created time.Time

	changed signal.Broadcast
	mu      sync.Mutex
	seen    map[Moment]Seen
}

// Seen is the time at which a moment was first seen, with the pod at that time if its status shows the moment.
type Seen struct {
	At  time.Time
	Pod *corev1.Pod
}

// Seen returns when the moment was first seen, zero if it was not.
func (p *Pod) Seen(m Moment) Seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[m]
}

// Wait waits until one of the moments has been seen, and returns it.
func (p *Pod) Wait(ctx context.Context, moments ...Moment) (Moment, error) {
	for {
		changed := p.changed.Next()
		for _, m := range moments {
			if !p.Seen(m).At.IsZero() {
				return m, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", fmt.Errorf("wait for pod %s to be %v: %w", p.Name, moments, context.Cause(ctx))
		}
	}
}

// Took waits until the moment has been seen, and returns how long after the pod's creation that was.
func (p *Pod) Took(ctx context.Context, m Moment) (time.Duration, error) {
	if _, err := p.Wait(ctx, m); err != nil {
		return 0, err
	}
	return p.Seen(m).At.Sub(p.Created), nil
}

func (p *Pod) happened(m Moment, object *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen[m].At.IsZero() {
		p.seen[m] = Seen{time.Now(), object}
		p.changed.Send()
	}
}

// momentsOf returns the moments that a pod's status shows.
func momentsOf(pod *corev1.Pod) []Moment {
	var out []Moment
	if pod.Status.NominatedNodeName != "" && slices.ContainsFunc(pod.ManagedFields, byController) {
		out = append(out, Nominated)
	}
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable &&
			strings.Contains(c.Message, "nodes are available")
	}) {
		out = append(out, Refused)
	}
	if pod.Spec.NodeName != "" {
		out = append(out, Scheduled)
	}
	if pod.Status.Phase == corev1.PodRunning {
		out = append(out, Running)
	}
	return out
}

// byController reports whether a nomination is the controller's: the scheduler writes one, too, while it binds.
func byController(f metav1.ManagedFieldsEntry) bool {
	return f.Manager == v1alpha1.ControllerName && strings.Contains(f.FieldsV1.GetRawString(), "nominatedNodeName")
}
