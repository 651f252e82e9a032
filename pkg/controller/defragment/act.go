// SPDX-License-Identifier: Apache-2.0

package defragment

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/moves"
)

// tell tells the pods that would be evicted.
func (d *Defragmenter) tell(p *moves.Plan, gain string) {
	for _, m := range p.Moves {
		d.Events.Normal(report.Pod(m.Pod.Namespace, m.Pod.Name, m.Pod.UID), v1alpha1.ReasonWouldMove, fmt.Sprintf(
			"With the setting DEFRAGMENT=%s, the controller would evict the pod from node %s: node %s has room for it. Gain: %s",
			Evict, m.From, m.To, gain))
		d.Moved(Planned)
	}
}

// evict evicts the pods of a plan, if the cluster lets all of them go as far as can be tried.
func (d *Defragmenter) evict(ctx context.Context, p *moves.Plan, gain string, r record, now time.Time) error {
	r.Moves = slices.Clone(r.Moves)
	var pods []*corev1.Pod
	for _, m := range p.Moves {
		pods = append(pods, m.Pod)
		r.Moves = append(r.Moves, moved{now.UTC().Truncate(time.Second), m.Pod.UID, ownerOf(m.Pod), m.To})
	}
	own := func(*corev1.Pod) *int64 { return nil }
	switch err := d.refused.Try(ctx, d.Pods, pods, own, now); {
	case err == nil:
	case podstate.Refused(err):
		klog.FromContext(ctx).Info("Looking for other moves: the API server refused to evict a pod", "for",
			podstate.RefusedFor, "err", err)
		return nil
	default:
		return err
	}
	if err := d.write(ctx, r); err != nil {
		return err
	}
	for _, m := range p.Moves {
		if err := podstate.Evict(ctx, d.Pods, m.Pod, nil); err != nil {
			// The record has it as moved: it stays for an hour.
			return fmt.Errorf("evict pod %s from node %s for node %s: %w", klog.KObj(m.Pod), m.From, m.To, err)
		}
		d.Events.Normal(report.Pod(m.Pod.Namespace, m.Pod.Name, m.Pod.UID), v1alpha1.ReasonMoved, fmt.Sprintf(
			"The controller evicted the pod from node %s: node %s has room for its replacement. Gain: %s", m.From, m.To, gain))
		d.Moved(Evicted)
	}
	return nil
}
