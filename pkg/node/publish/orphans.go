// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// SetOrphans tells the publisher which claims are prepared though nothing is allocated to
// them any more: what they use is not offered meanwhile.
func (p *Publisher) SetOrphans(claims []orphans.Orphan) {
	why := map[types.UID]string{}
	for _, c := range claims {
		why[c.UID] = whyInUse(c)
	}
	if !maps.Equal(p.inputs().orphans, why) {
		p.update(func() { p.orphans = why })
	}
}

func whyInUse(c orphans.Orphan) string {
	if c.Unknown != nil {
		return fmt.Sprintf("whether processes of its pods run is not known (%v), so it stays until the kubelet ends it or "+
			"the node is restarted", c.Unknown)
	}
	if c.Kept != nil {
		return c.Kept.Error()
	}
	if c.User != "" {
		return fmt.Sprintf("processes of the pod with UID %s still run", c.User)
	}
	return "the kubelet is about to end it"
}

// withOrphans adds, to what pods without a claim hold, what orphans do.
func (s snapshot) withOrphans() (reserved held.Reserved, told event, err error) {
	reserved, told = s.reserved, event{reason: v1alpha1.ReasonHeldByGoneClaim}
	if len(s.orphans) == 0 {
		return reserved, told, nil
	}
	records, err := s.prepared()
	if err != nil {
		return reserved, told, err
	}
	var held []string
	for _, r := range records {
		why, orphan := s.orphans[r.UID]
		if !orphan {
			continue
		}
		name := "claim " + r.Namespace + "/" + r.Name
		for uuid, amount := range usage.AsReserved(r.Usage(), s.checkpoint.Published) {
			reserved = reserved.Plus(uuid, name, amount)
		}
		held = append(held, fmt.Sprintf("%s by %s (%s)", indices(s.machine, r), name, why))
	}
	if len(held) > 0 {
		told.message = "Processes use these GPUs although their claims are gone or were allocated again; the node does " +
			"not offer what they hold until they end: " + text.List(held, mostNamed)
	}
	return reserved, told, nil
}

// indices names the GPUs, or MIG instances, that the record's claim holds.
func indices(m *gpu.Machine, r state.Record) string {
	var reserved []string
	for _, g := range r.Grants {
		if g.GPU.MIG != nil && !g.Admin {
			reserved = append(reserved, g.GPU.String())
		}
	}
	if len(reserved) > 0 {
		return strings.Join(reserved, ", ")
	}
	for _, g := range m.GPUs {
		if slices.ContainsFunc(r.Grants, func(grant claim.Grant) bool { return !grant.Admin && grant.GPU.UUID == g.UUID }) {
			reserved = append(reserved, fmt.Sprint(g.Index))
		}
	}
	return "GPU " + strings.Join(reserved, ", ")
}
