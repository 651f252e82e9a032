// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// Outcome is what came of a pod's nomination when the pod got a node.
type Outcome string

const (
	// Right: the pod is on the node that was nominated.
	Right Outcome = "right"
	// Wrong: it is on another one.
	Wrong Outcome = "wrong"
	// Late: it has a node, and none was nominated before.
	Late Outcome = "late"
)

// outcomeOf is that of a pod by what is known of it, empty where no node was to be nominated.
func outcomeOf(s *state, node string) Outcome {
	switch {
	case s.nominated != "" && !s.written, s.nominated == "" && s.learned:
		return Late
	case s.nominated == "":
		return ""
	case s.nominated == node:
		return Right
	default:
		return Wrong
	}
}

// bound is called for a pod that has got a node, and has not started.
func (n *Nominator) bound(pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.pods[pod.UID]
	if s == nil {
		return
	}
	delete(n.pods, pod.UID)
	outcome := outcomeOf(s, pod.Spec.NodeName)
	if s.counts && s.wish == nil && n.wishes.allocated(pod) {
		outcome = Late
	}
	if outcome != "" {
		n.Outcome(outcome)
	}
}

// note notes a pod as it is now: that it is to be nominated, and since when it is at the gate.
func (n *Nominator) note(pod *corev1.Pod, nominable bool) {
	counts := nominable && len(pod.Spec.ResourceClaims) > 0 && pod.Status.NominatedNodeName == ""
	atGate := placement.AtGate(pod) && !heldByOthers(pod)
	if !counts && !atGate {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.know(pod.UID)
	s.counts = s.counts || counts
	if atGate && s.since.IsZero() {
		s.since = n.Clock.Now()
	}
}

// know returns what is known of a pod, which is nothing of a new one; mu is held.
func (n *Nominator) know(uid types.UID) *state {
	s := n.pods[uid]
	if s == nil {
		s = &state{}
		n.pods[uid] = s
	}
	return s
}

// started reports whether a pod has a node, as far as the cache shows.
func (n *Nominator) started(pod *corev1.Pod) bool {
	there, is := n.starting.Get(cache.Key(pod))
	return is && there.UID == pod.UID
}
