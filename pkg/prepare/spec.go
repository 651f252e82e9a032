package prepare

import (
	"fmt"
	"slices"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

func (p *Preparer) writeSpec(inv *Inventory, r state.Record) error {
	s, err := p.spec(inv, r)
	if err != nil {
		return err
	}
	return p.Specs.Write(r.CDISpec, s)
}

// spec is the claim's CDI spec: a device per grant, which brings the card, the
// environment of the grant's request and what its isolation needs.
func (p *Preparer) spec(inv *Inventory, r state.Record) (*specs.Spec, error) {
	var cdiDevices []specs.Device
	for _, request := range requests(r) {
		backend, err := p.Isolation(request.Grants[0].Mode)
		if err != nil {
			return nil, err
		}
		enforcement, err := backend.Edits(request)
		if err != nil {
			return nil, fmt.Errorf("request %q: isolation %s: %w", request.Grants[0].Request, backend.Name(), err)
		}
		for _, g := range request.Grants {
			card, err := inv.Base.Card(g.Card.UUID)
			if err != nil {
				return nil, err
			}
			edits := concat(card, specs.ContainerEdits{Env: isolation.Env(request)}, *enforcement)
			cdiDevices = append(cdiDevices, specs.Device{
				Name:           cdi.DeviceName(r.UID, g.Request, g.Device, g.ShareID),
				ContainerEdits: edits,
			})
		}
	}
	return cdi.Spec(inv.Base.Common(), cdiDevices)
}

// requests groups the record's grants by request, in their order.
func requests(r state.Record) []isolation.Request {
	var out []isolation.Request
	var claimUnits int64
	for _, g := range r.Grants {
		claimUnits += g.Units
		i := slices.IndexFunc(out, func(q isolation.Request) bool { return q.Grants[0].Request == g.Request })
		if i < 0 {
			out = append(out, isolation.Request{ClaimUID: r.UID, Grants: []claim.Grant{g}})
			continue
		}
		out[i].Grants = append(out[i].Grants, g)
	}
	for i := range out {
		out[i].ClaimUnits = claimUnits
	}
	return out
}

// concat joins edits without touching their arguments' slices, which are
// shared by all claims.
func concat(edits ...specs.ContainerEdits) specs.ContainerEdits {
	var out specs.ContainerEdits
	for _, e := range edits {
		out.Env = append(out.Env, e.Env...)
		out.DeviceNodes = append(out.DeviceNodes, e.DeviceNodes...)
		out.NetDevices = append(out.NetDevices, e.NetDevices...)
		out.Mounts = append(out.Mounts, e.Mounts...)
		out.Hooks = append(out.Hooks, e.Hooks...)
		out.AdditionalGIDs = append(out.AdditionalGIDs, e.AdditionalGIDs...)
		if e.IntelRdt != nil {
			out.IntelRdt = e.IntelRdt
		}
	}
	return out
}
