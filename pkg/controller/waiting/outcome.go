// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
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
	if s.wish == nil && n.wishes.allocated(pod) {
		outcome = Late
	}
	if outcome != "" {
		n.Outcome(outcome)
	}
}

// note has a pod that is to be nominated known, so that it counts where the scheduler is faster.
func (n *Nominator) note(pod *corev1.Pod) {
	if len(pod.Spec.ResourceClaims) == 0 || pod.Status.NominatedNodeName != "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods[pod.UID] == nil {
		n.pods[pod.UID] = &state{}
	}
}

// wrote notes that a nomination stands in the pod.
func (n *Nominator) wrote(uid types.UID, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.pods[uid]; s != nil && s.nominated == node {
		s.written = true
	}
}

// started reports whether a pod has a node, as far as the cache shows.
func (n *Nominator) started(pod *corev1.Pod) bool {
	there, is := n.starting.Get(cache.Key(pod))
	return is && there.UID == pod.UID
}
