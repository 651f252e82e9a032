// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// recorded is what the records of claims say of a pod that is not known: who it was, and
// what was granted to it of the GPU. It may not have been seen yet, which is over soon (see
// raiseAfter).
func (in judge) recorded(uid types.UID, uuid string) (Pod, granted) {
	who, out := Pod{UID: uid}, granted{}
	if uid == "" {
		return who, out
	}
	for _, c := range in.Claims {
		if !slices.Contains(c.Pods, uid) {
			continue
		}
		who.Namespace, out.namespace = c.Namespace, c.Namespace
		if len(c.Pods) == 1 && len(c.PodNames) == 1 {
			who.Name = c.PodNames[0]
		}
		out.add(c, c.Grants, uuid)
	}
	return who, out
}

// gone says what the processes of a pod hold that is gone. What is used has the pod's and the
// container's names empty: whoever reads metrics of both takes it for nobody's else.
func (in judge) gone(h *holder, use ClaimUse, out *Judgement) {
	use.Pod = ""
	same := slices.IndexFunc(out.Claims, func(u ClaimUse) bool {
		return u.Pod == "" && u.Namespace == use.Namespace && u.Claim == use.Claim && u.UUID == use.UUID
	})
	if same < 0 {
		out.Claims = append(out.Claims, use)
	} else {
		out.Claims[same].UsedMiB += use.UsedMiB
		out.Claims[same].Processes += use.Processes
	}
	if in.PodsUnread {
		return
	}
	name := "pod " + h.who.Namespace + "/" + h.who.Name
	if h.who.Name == "" {
		name = "a pod of namespace " + h.who.Namespace
	}
	out.Findings = append(out.Findings, Finding{Kind: GonePod, Pod: h.who, Index: h.use.Index, UUID: h.use.UUID,
		Message: fmt.Sprintf("%s on %s of %s (UID %s), which is gone: they hold %s, and claim %s grants %d MiB",
			h.count(), h.use.Name(), name, h.who.UID, amount(h.usedMiB()), strings.Join(h.granted.claims, ", "),
			use.GrantedMiB)})
}
