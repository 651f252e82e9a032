// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// holders are what is held of the GPUs beside the claims: by pods without a claim, by other
// drivers, and by orphans. others are the GPUs, by UUID, of which the first two have any, also those
// that are left out: programs may run on them. What is told of them is told also where it is not
// known what orphans hold. Nothing is told, nor taken back, while the GPUs are unread: nobody could
// be found on them.
func (s snapshot) holders() (reserved held.Reserved, others map[string]bool, told []event, err error) {
	if s.unread {
		return s.reserved, nil, nil, nil
	}
	if s.reserved.IsEmpty() && len(s.orphans) == 0 {
		return s.reserved, nil, []event{{reason: v1alpha1.ReasonHeldWithoutClaim},
			{reason: v1alpha1.ReasonGPUsOfPodsUnknown}, {reason: v1alpha1.ReasonOtherDriver},
			{reason: v1alpha1.ReasonHeldByGoneClaim}}, nil
	}
	others = map[string]bool{}
	for _, g := range s.machine.Unpartitioned() {
		if held := s.reserved.GPU(g.UUID); len(held.Pods) > 0 || held.Driver != "" {
			others[g.UUID] = true
		}
	}
	ofDrivers := otherDrivers(s.machine, s.reserved)
	told = append(podsWithoutClaim(s.machine, s.reserved), ofDrivers)
	reserved, ofOrphans, err := s.withOrphans()
	if err != nil {
		return reserved, others, told, err
	}
	return reserved, others, append(told, ofOrphans), nil
}

// podsWithoutClaim says which pods hold GPUs without a claim, and of which it is not known what
// they hold.
func podsWithoutClaim(m *gpu.Machine, t held.Reserved) []event {
	held, unsure := event{reason: v1alpha1.ReasonHeldWithoutClaim, good: true},
		event{reason: v1alpha1.ReasonGPUsOfPodsUnknown}
	var perGPU []string
	for _, g := range m.GPUs {
		if held := t.GPU(g.UUID); len(held.Pods) > 0 && held.Driver == "" {
			perGPU = append(perGPU, fmt.Sprintf("GPU %d: %s (%s)", g.Index, amountOf(g, held), text.List(held.Pods, mostNamed)))
		}
	}
	if len(perGPU) > 0 {
		held.message = "Pods that a device plugin started hold these GPUs without a claim, until they end: " +
			strings.Join(perGPU, "; ")
	}
	var unknown []string
	for _, pod := range t.Pods {
		for _, u := range pod.Unknown {
			unknown = append(unknown, fmt.Sprintf("pod %s: %s", pod.FullName(), u.Reason))
		}
	}
	if len(unknown) > 0 {
		unsure.message = "It is not known which GPUs these pods hold, so what they ask for counts on every GPU until they " +
			"end: " + text.List(unknown, mostNamed)
	}
	return []event{held, unsure}
}

// amountOf is what is taken of a GPU, in words.
func amountOf(g gpu.GPU, held held.GPU) string {
	switch {
	case held.Whole:
		return "all of it"
	case held.Cores > 0:
		return fmt.Sprintf("%d of %d GiB and %d %% of its compute", held.Units, g.MemoryUnits(), held.Cores)
	default:
		return fmt.Sprintf("%d of %d GiB", held.Units, g.MemoryUnits())
	}
}

// mayBecomeKnown reports whether looking again may tell which GPUs a pod holds, or that it has ended:
// the kubelet does not say when it comes to know that. A pod that is not watched has no UID.
func mayBecomeKnown(t held.Reserved) bool {
	return t.Outdated ||
		slices.ContainsFunc(t.Pods, func(p held.Pod) bool { return p.UID == "" || len(p.Unknown) > 0 })
}

// otherDrivers says which GPUs other DRA drivers have.
func otherDrivers(m *gpu.Machine, t held.Reserved) event {
	told := event{reason: v1alpha1.ReasonOtherDriver}
	var perGPU []string
	for _, g := range m.GPUs {
		held := t.GPU(g.UUID)
		if held.Driver == "" {
			continue
		}
		by := held.Driver
		if len(held.Pods) > 0 {
			by += ", held by " + text.List(held.Pods, mostNamed)
		}
		perGPU = append(perGPU, fmt.Sprintf("GPU %d (%s)", g.Index, by))
	}
	if len(perGPU) > 0 {
		told.message = fmt.Sprintf("Other DRA drivers publish these GPUs, too, or gave them to pods, so they take no new "+
			"claims: %s: take that driver off the node, or, if nothing is to be allocated from it, label the node %s=%s: "+
			"docs/install.md#beside-another-dra-driver", strings.Join(perGPU, "; "), v1alpha1.LabelGPUDriver,
			v1alpha1.DriverName)
	}
	return told
}
