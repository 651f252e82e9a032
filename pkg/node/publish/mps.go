// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// mpsStartLimit is how long the publisher waits for daemons that it has just asked
// for before it says that they are not there. They take a second.
const mpsStartLimit = 10 * time.Second

// mpsStarting says whether daemons that were started a moment ago are not there yet; started is
// zero if none were.
func mpsStarting(served []servedMode, started, now time.Time) bool {
	missing := slices.ContainsFunc(served, func(s servedMode) bool { return s.byMPS() && len(s.unhealthy) > 0 })
	return missing && !started.IsZero() && now.Sub(started) < mpsStartLimit
}

// mpsOffered is what of MPS is published.
type mpsOffered struct {
	machine *gpu.Machine
	offer   mode.Offer
	// others are the GPUs that other drivers have, by UUID.
	others map[string]bool
}

// mpsGPU is a GPU as one kind of daemon has it: its own, or the one for all.
type mpsGPU struct {
	uuid string
	node bool
}

// mpsUser is how a kind of daemon is told what GPUs are used for.
type mpsUser interface {
	Use(uuid string) (mps.Use, error)
	SetUse(uuid string, u mps.Use) error
}

func (d *mpsDemand) of(g mpsGPU) mpsUser {
	if g.node {
		return d.MPS.OfNode()
	}
	return d.MPS
}

// uses is what the GPUs are used for by each kind of daemon, where the records' claims are
// prepared.
func (o mpsOffered) uses(backends isolation.Backends, records []state.Record) (map[mpsGPU]mps.Use, error) {
	uses := map[mpsGPU]mps.Use{}
	for _, g := range o.machine.GPUs {
		// Programs of another driver's pods are not to be kept off the GPU.
		uses[mpsGPU{g.UUID, false}] = mps.Use{Reserved: offersBy(o.offer, isolation.NameMPS) &&
			o.offer.Mode != mode.Dynamic && !o.others[g.UUID]}
		uses[mpsGPU{g.UUID, true}] = mps.Use{Reserved: offersBy(o.offer, isolation.NameMPSNode)}
	}
	for _, r := range records {
		if !usesMPS(r) {
			continue
		}
		isolated, err := isolation.ForClaim(backends, r.Grants, r.Order)
		if err != nil {
			return nil, fmt.Errorf("claim %s/%s: %w", r.Namespace, r.Name, err)
		}
		for uuid, limits := range isolated.MPSLimits() {
			gpu := mpsGPU{uuid, false}
			uses[gpu] = uses[gpu].With(limits)
		}
		for uuid, limits := range isolated.NodeMPSLimits() {
			gpu := mpsGPU{uuid, true}
			uses[gpu] = uses[gpu].With(limits)
		}
	}
	return uses, nil
}

func (s servedMode) byMPS() bool { return isolation.ByMPS(s.backend.Name()) }

func (s servedMode) byNodeDaemon() bool { return s.backend.Name() == isolation.NameMPSNode }

func offersMPS(o mode.Offer) bool {
	return offersBy(o, isolation.NameMPS) || offersBy(o, isolation.NameMPSNode)
}

func offersBy(o mode.Offer, backend string) bool {
	return slices.Contains(slices.Collect(maps.Values(o.Isolation)), backend)
}

// usesMPS says whether a claim is, or may be, held to its share by MPS: records of older
// versions do not say by what.
func usesMPS(r state.Record) bool {
	for _, g := range r.Grants {
		if isolation.ByMPS(g.Isolation) || g.Isolation == "" && isolation.Capped(g.Mode) {
			return true
		}
	}
	return false
}
