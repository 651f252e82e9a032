package prepare

import (
	"fmt"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// setUp has all effects of the record: what the back ends need on the host,
// then the spec that refers to it.
func (p *Preparer) setUp(inv *Inventory, r state.Record) error {
	for _, u := range users(r) {
		backend, err := p.backend(u.grants[0])
		if err != nil {
			return err
		}
		if err := backend.SetUp(u.request); err != nil {
			return fmt.Errorf("request %q: isolation %s: %w", u.grants[0].Request, backend.Name(), err)
		}
	}
	return p.writeSpec(inv, r)
}

func (p *Preparer) writeSpec(inv *Inventory, r state.Record) error {
	s, err := p.spec(inv, r)
	if err != nil {
		return err
	}
	return p.Specs.Write(r.CDISpec, s)
}

// spec is the claim's CDI spec: a device per allocation result, which brings
// its cards, the environment of the result's user and what its isolation needs.
func (p *Preparer) spec(inv *Inventory, r state.Record) (*specs.Spec, error) {
	var cdiDevices []specs.Device
	for _, u := range users(r) {
		enforcement, err := p.enforcement(u.request)
		if err != nil {
			return nil, err
		}
		for _, result := range claim.Results(u.grants) {
			edits, err := cards(inv.Base, result)
			if err != nil {
				return nil, err
			}
			cdiDevices = append(cdiDevices, specs.Device{
				Name:           cdi.DeviceName(r.UID, result[0].Request, result[0].Device, result[0].ShareID),
				ContainerEdits: concat(edits, specs.ContainerEdits{Env: isolation.Env(u.request)}, *enforcement),
			})
		}
	}
	return cdi.Spec(inv.Base.Common(), cdiDevices)
}

// cards are the edits of all cards of an allocation result.
func cards(base BaseEdits, result []claim.Grant) (specs.ContainerEdits, error) {
	var edits []specs.ContainerEdits
	for _, g := range result {
		card, err := base.Card(g.Card.UUID)
		if err != nil {
			return specs.ContainerEdits{}, err
		}
		edits = append(edits, card)
	}
	return concat(edits...), nil
}

// enforcement is what holds a container to the request's grants. An
// administrator sees the card as it is.
func (p *Preparer) enforcement(request isolation.Request) (*specs.ContainerEdits, error) {
	first := request.Grants[0]
	if first.Admin {
		return &specs.ContainerEdits{}, nil
	}
	backend, err := p.backend(first)
	if err != nil {
		return nil, err
	}
	edits, err := backend.Edits(request)
	if err != nil {
		return nil, fmt.Errorf("request %q: isolation %s: %w", first.Request, backend.Name(), err)
	}
	return edits, nil
}

// user is a request, or the container that several requests are for, with what it
// was granted by each result and with the sum.
type user struct {
	grants  []claim.Grant
	request isolation.Request
}

// users groups the record's grants by whom they are for, in their order.
func users(r state.Record) []user {
	var claimUnits int64
	for _, g := range r.Grants {
		if !g.Admin {
			claimUnits += g.Units
		}
	}
	var out []user
	for _, own := range byUser(r.Grants) {
		out = append(out, user{own, isolation.Request{Grants: claim.PerCard(own), Order: r.Order, ClaimUnits: claimUnits}})
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
