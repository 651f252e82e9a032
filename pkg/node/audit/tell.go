// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// mostTold is how many findings one Event names.
const mostTold = 4

// Eviction reports whether pods are evicted for findings.
type Eviction struct {
	// Kinds are those for which pods are; none by default.
	Kinds []Kind
	// After is for how long a finding has to hold.
	After time.Duration
	// OverBudgets is whether pods are evicted that a PodDisruptionBudget keeps.
	OverBudgets bool
}

// ParseKinds reads a setting: a comma-separated list of the kinds for which pods can be
// evicted.
func ParseKinds(list string) ([]Kind, error) {
	possible := []Kind{BesideMPS, ClientSlots, NoGrant, OverShare}
	var kinds []Kind
	for name := range strings.SplitSeq(list, ",") {
		kind := Kind(strings.TrimSpace(name))
		switch {
		case kind == "":
		case !slices.Contains(possible, kind):
			return nil, fmt.Errorf("%q is none of %q, the findings that pods can be evicted for", kind, possible)
		case !slices.Contains(kinds, kind):
			kinds = append(kinds, kind)
		}
	}
	return kinds, nil
}

// Told is what an Event says: all findings of a kind about one pod, or, without a pod,
// about the node.
type Told struct {
	Kind    Kind
	Pod     Pod
	Message string
}

// Tell says what is to be told of the findings that hold, in their order. It says the same
// for as long as they are the same.
func Tell(holding []Finding, e Eviction) []Told {
	type about struct {
		kind Kind
		pod  Pod
	}
	var order []about
	messages, evicted := map[about][]string{}, map[about]bool{}
	for _, f := range holding {
		a := about{f.Kind, f.Pod}
		if f.Kind.OnNode() {
			a.pod = Pod{}
		}
		if _, known := messages[a]; !known {
			order = append(order, a)
		}
		messages[a] = append(messages[a], f.Message)
		evicted[a] = evicted[a] || f.MayEvict && slices.Contains(e.Kinds, f.Kind)
	}
	told := make([]Told, 0, len(order))
	for _, a := range order {
		lines := messages[a]
		if more := len(lines) - mostTold; more > 0 {
			lines = append(lines[:mostTold:mostTold], fmt.Sprintf("and %d more", more))
		}
		message := capital(strings.Join(lines, "; ")) + ". " + advice[a.kind]
		if evicted[a] {
			message += fmt.Sprintf(" The pod is evicted if this lasts for %s.", e.After)
		}
		told = append(told, Told{a.kind, a.pod, message})
	}
	return told
}

func capital(s string) string {
	for i, r := range s {
		return string(unicode.ToUpper(r)) + s[i+len(string(r)):]
	}
	return s
}

// advice says for each kind what it means, or what to do.
var advice = map[Kind]string{
	OverShare: "The GPU's other users lack the memory that it holds beyond its share: let the program use less, request " +
		"more memory, or give each container a claim of its own.",
	ClientSlots: "When none is left, further programs of any share fail with \"too many clients\": have it start fewer " +
		"processes, or give it a larger share or a whole GPU.",
	NoGrant:   "Give it a claim of its own. A privileged container may use only the GPUs of its claim.",
	BesideMPS: "It changed CUDA_MPS_PIPE_DIRECTORY, or started while the GPU's MPS daemon was down: start it again.",
	PastLimit: "Its limit does not hold managed memory, nor what other processes share with it " +
		"(docs/kernel-limits.md#unlimited-memory): have the program allocate on the device.",
	GonePod: "What they hold stays allocated until they end. The kubelet hangs, or the kernel cannot end them: restart " +
		"the node's kubelet, or else the node: docs/audit.md#pods-that-are-gone.",
	NoPod: "Pods that were granted the GPU lack what these processes hold: find out who starts them.",
}
