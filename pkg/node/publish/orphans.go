// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
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
	p.mu.Lock()
	same := maps.Equal(p.orphans, why)
	p.mu.Unlock()
	if !same {
		p.update(func() { p.orphans = why })
	}
}

func whyInUse(c orphans.Orphan) string {
	if c.Unknown != nil {
		return fmt.Sprintf("whether processes of its pods run is not known (%v), so it stays until the kubelet ends it or "+
			"the node is started anew", c.Unknown)
	}
	if c.User != "" {
		return fmt.Sprintf("processes of the pod with UID %s still run", c.User)
	}
	return "the kubelet is about to end it"
}

// withOrphans adds, to what pods without a claim hold, what orphans do.
func (p *Publisher) withOrphans(ctx context.Context, in inputs, reserved deviceplugin.Reserved) (deviceplugin.Reserved,
	error) {
	if len(in.orphans) == 0 {
		p.Events.Clear(v1alpha1.ReasonHeldByGoneClaim)
		return reserved, nil
	}
	records, err := p.Claims.Prepared(ctx)
	if err != nil {
		return reserved, fmt.Errorf("look up what claims hold that are gone: %w", err)
	}
	var told []string
	for _, r := range records {
		why, orphan := in.orphans[r.UID]
		if !orphan {
			continue
		}
		name := "claim " + r.Namespace + "/" + r.Name
		for uuid, amount := range usage.AsReserved(r.Usage(), p.checkpoint.Published) {
			reserved = reserved.Plus(uuid, name, amount)
		}
		told = append(told, fmt.Sprintf("%s by %s (%s)", indices(in.machine, r), name, why))
	}
	if len(told) == 0 {
		p.Events.Clear(v1alpha1.ReasonHeldByGoneClaim)
		return reserved, nil
	}
	p.Events.Warn(v1alpha1.ReasonHeldByGoneClaim, "These GPUs are in use though the claims that they were allocated to "+
		"are gone or were allocated anew; what is held is not offered until that ends: "+text.List(told, mostNamed))
	return reserved, nil
}

// indices names the GPUs that the record's claim holds.
func indices(m *gpu.Machine, r state.Record) string {
	var reserved []string
	for _, g := range m.GPUs {
		if slices.ContainsFunc(r.Grants, func(grant claim.Grant) bool { return !grant.Admin && grant.Card.UUID == g.UUID }) {
			reserved = append(reserved, fmt.Sprint(g.Index))
		}
	}
	return "GPU " + strings.Join(reserved, ", ")
}
