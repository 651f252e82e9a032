// SPDX-License-Identifier: Apache-2.0

package defragment

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// record are the evictions of the last hour.
type record struct {
	Moves []moved `json:"moves"`
}

// moved is a pod that is evicted, or is about to be.
type moved struct {
	At  time.Time `json:"at"`
	UID types.UID `json:"uid"`
	// Owner is who makes the pod again, To the node where it is expected.
	Owner types.UID `json:"owner"`
	To    string    `json:"to"`
}

// ownerOf is who makes a pod again, nobody where it is empty.
func ownerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return owner.UID
	}
	return ""
}

// readRecord reads the evictions of the last hour.
func (d *Defragmenter) readRecord(ctx context.Context, now time.Time) (record, error) {
	lease, err := d.Leases.Get(ctx, v1alpha1.ControllerName, metav1.GetOptions{})
	if err != nil {
		return record{}, fmt.Errorf("read which pods were moved, in Lease %s: %w", v1alpha1.ControllerName, err)
	}
	var r record
	if written := lease.Annotations[v1alpha1.AnnotationMoved]; written != "" {
		if err := json.Unmarshal([]byte(written), &r); err != nil {
			return record{}, fmt.Errorf("read which pods were moved, in annotation %s of Lease %s; remove it if somebody wrote "+
				"it: %w", v1alpha1.AnnotationMoved, v1alpha1.ControllerName, err)
		}
	}
	r.Moves = slices.DeleteFunc(r.Moves, func(m moved) bool { return now.Sub(m.At) >= window })
	d.record.Store(&r)
	return r, nil
}

// write writes down what is about to be done. The elections write the same Lease: a conflict is tried again.
func (d *Defragmenter) write(ctx context.Context, r record) error {
	written, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write which pods are moved: %w", err)
	}
	lease, err := d.Leases.Get(ctx, v1alpha1.ControllerName, metav1.GetOptions{})
	if err == nil {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, v1alpha1.AnnotationMoved, string(written))
		_, err = d.Leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write which pods are moved, in Lease %s: %w", v1alpha1.ControllerName, err)
	}
	d.record.Store(&r)
	return nil
}

// waits reports whether the last batch is not done: a pod has not gone, or one that was made in its place has no node,
// or may not be there yet. Of an owner's new pods as many count as were moved: it may ask for more than there is room
// for.
func (r record) waits(pods []*corev1.Pod, now time.Time) bool {
	open := map[types.UID]int{}
	for _, m := range r.Moves {
		if now.Sub(m.At) < settling {
			return true
		}
		open[m.Owner]++
	}
	var pending []*corev1.Pod
	for _, pod := range pods {
		switch {
		case pod.DeletionTimestamp != nil:
			if slices.ContainsFunc(r.Moves, func(m moved) bool { return m.UID == pod.UID }) {
				return true
			}
		case !slices.ContainsFunc(r.Moves, func(m moved) bool { return m.replacedBy(pod) }):
		case pod.Spec.NodeName == "":
			pending = append(pending, pod)
		default:
			open[ownerOf(pod)]--
		}
	}
	return slices.ContainsFunc(pending, func(pod *corev1.Pod) bool { return open[ownerOf(pod)] > 0 })
}

// replacedBy reports whether a pod may have been made in the place of the one that was moved.
func (m moved) replacedBy(pod *corev1.Pod) bool {
	return m.UID != pod.UID && m.Owner != "" && m.Owner == ownerOf(pod) && !pod.CreationTimestamp.Time.Before(m.At)
}

// moved reports whether a pod was moved in the last hour, by itself or as the one before it.
func (r record) moved(pod *corev1.Pod) bool {
	return slices.ContainsFunc(r.Moves, func(m moved) bool { return m.UID == pod.UID || m.replacedBy(pod) })
}

// Planned is the node on which a pod is expected that was made in the place of one that was moved, empty where it is
// none: of several with the same owner each takes the next node of theirs, in the order of the names.
func (d *Defragmenter) Planned(pod *corev1.Pod) string {
	r := d.record.Load()
	if r == nil {
		return ""
	}
	nth := 0
	for _, other := range d.pods.List() {
		if ownerOf(other) == ownerOf(pod) && other.Name < pod.Name && r.moved(other) {
			nth++
		}
	}
	var to []string
	for _, m := range r.Moves {
		if m.replacedBy(pod) {
			to = append(to, m.To)
		}
	}
	if nth >= len(to) {
		return ""
	}
	return to[nth]
}
