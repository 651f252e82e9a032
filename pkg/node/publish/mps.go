// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// mpsStartLimit is how long the publisher waits for daemons that it has just asked
// for before it says that they are not there. They take a second.
const mpsStartLimit = 10 * time.Second

// errMPSStarting is that the mode asked for waits for daemons that are being started. What
// is published stays until then.
var errMPSStarting = errors.New("the MPS control daemons are being started")

// mpsNeed is what gpu-mps-supervisor was last told.
type mpsNeed struct {
	// takeBack ends that nothing uses MPS; nil while that is not said.
	takeBack func() error
	// asked is when it was last taken back.
	asked time.Time
}

// startMPS has the daemons started where the node asks for a mode that needs them.
func (p *Publisher) startMPS(served []servedMode) error {
	if err := p.startNodeDaemon(served); err != nil {
		return err
	}
	if p.mpsNeed.takeBack == nil || !slices.ContainsFunc(served, servedMode.byMPS) {
		return nil
	}
	if err := p.mpsNeed.takeBack(); err != nil {
		return err
	}
	p.mpsNeed = mpsNeed{asked: p.Clock.Now()}
	return nil
}

// startNodeDaemon has the daemon for all GPUs started where the node asks for it.
func (p *Publisher) startNodeDaemon(served []servedMode) error {
	if !slices.ContainsFunc(served, servedMode.byNodeDaemon) {
		return nil
	}
	wanted, err := p.MPS.NodeDaemonWanted()
	if err == nil && !wanted {
		p.mpsNeed.asked = p.Clock.Now()
		err = p.MPS.WantNodeDaemon(true)
	}
	return err
}

// stopUnusedNodeDaemon has it ended where neither what the node asks for, nor what it
// publishes, nor a claim that is prepared uses it. It returns false where that is not known.
func (p *Publisher) stopUnusedNodeDaemon(ctx context.Context) (known bool, err error) {
	wanted, err := p.MPS.NodeDaemonWanted()
	if err != nil || !wanted || slices.ContainsFunc(p.served, servedMode.byNodeDaemon) ||
		offersBy(p.checkpoint.offer(), isolation.NameMPSNode) {
		return err == nil, err
	}
	records, err := p.Claims.Prepared(ctx)
	if err == nil {
		err = p.Claims.Known(ctx)
	}
	if err != nil {
		klog.FromContext(ctx).Info("It is not known whether a claim uses the MPS control daemon for all GPUs, so it goes on",
			"reason", err)
		return false, nil
	}
	byNodeDaemon := func(g claim.Grant) bool { return g.Isolation == isolation.NameMPSNode }
	if slices.ContainsFunc(records, func(r state.Record) bool { return slices.ContainsFunc(r.Grants, byNodeDaemon) }) {
		return true, nil
	}
	return true, p.MPS.WantNodeDaemon(false)
}

// mpsStarting says whether daemons that were asked for a moment ago are not there yet.
func (p *Publisher) mpsStarting(served []servedMode) bool {
	missing := slices.ContainsFunc(served, func(s servedMode) bool { return s.byMPS() && len(s.unhealthy) > 0 })
	return missing && !p.mpsNeed.asked.IsZero() && p.Clock.Since(p.mpsNeed.asked) < mpsStartLimit
}

// stopUnusedMPS has the daemons ended where neither what the node asks for, nor what it
// publishes, nor a claim that is prepared uses MPS. Where that is not known they go on, and
// it returns false.
func (p *Publisher) stopUnusedMPS(ctx context.Context) (known bool) {
	if p.mpsNeed.takeBack != nil || p.mayUseMPS() {
		return true
	}
	logger := klog.FromContext(ctx)
	records, err := p.Claims.Prepared(ctx)
	if err == nil {
		err = p.Claims.Known(ctx)
	}
	if err != nil {
		logger.Info("It is not known whether a claim uses MPS, so its daemons go on", "reason", err)
		return false
	}
	if slices.ContainsFunc(records, usesMPS) {
		return true
	}
	takeBack, err := p.MPS.SayUnneeded()
	if err != nil {
		logger.V(4).Info("The MPS control daemons go on although nothing uses them", "reason", err)
		return true
	}
	p.mpsNeed = mpsNeed{takeBack: takeBack}
	return true
}

// tellMPS says what each GPU is used for by MPS: whether it is published for nothing else,
// and what the largest share of it is. What is prepared says so itself if it is larger than
// all others, before it is used. It returns false, and says nothing, where claims may be
// prepared that are not among the records: the MPS server of a GPU without any is ended,
// and its clients with it.
func (p *Publisher) tellMPS(ctx context.Context, m *gpu.Machine) (told bool, err error) {
	records, err := p.Claims.Prepared(ctx)
	if err != nil {
		return false, fmt.Errorf("look up what uses MPS: %w", err)
	}
	told, err = p.toldMPS(m, records)
	if err != nil || told {
		return told, err
	}
	// What is prepared meanwhile would be taken back.
	err = p.Claims.WithNodeLocked(ctx, func(records []state.Record) error {
		// Asked after the records were read: one that cannot be is set aside then.
		if unknown := p.Claims.Known(ctx); unknown != nil {
			klog.FromContext(ctx).Info("It is not known which claims use MPS, so what gpu-mps-supervisor was told stays",
				"reason", unknown)
			return nil
		}
		uses, err := p.mpsUses(m, records)
		if err != nil {
			return err
		}
		// A GPU is given up by one daemon before another one is to have it.
		for _, guarded := range []bool{false, true} {
			for gpu, use := range uses {
				if use.Guarded() != guarded {
					continue
				}
				if err := p.mpsOf(gpu).SetUse(gpu.uuid, use); err != nil {
					return err
				}
			}
		}
		told = true
		return nil
	})
	return told, err
}

// toldMPS says whether that is what the supervisor was told last.
func (p *Publisher) toldMPS(m *gpu.Machine, records []state.Record) (bool, error) {
	uses, err := p.mpsUses(m, records)
	if err != nil {
		return false, err
	}
	for gpu, use := range uses {
		last, err := p.mpsOf(gpu).Use(gpu.uuid)
		if err != nil {
			return false, nil // it is written anew
		}
		if use.Seq = last.Seq; use != last {
			return false, nil
		}
	}
	return true, nil
}

// mpsOutdated says whether the supervisor was told something else than what is so now. What
// cannot be found out is left to the next reconciliation, which says why.
func (p *Publisher) mpsOutdated(ctx context.Context) bool {
	records, err := p.Claims.Prepared(ctx)
	if err != nil {
		return false
	}
	told, err := p.toldMPS(p.inputs().machine, records)
	return err == nil && !told
}

// mayUseMPS says whether what the node asks for, or what it publishes, uses MPS.
func (p *Publisher) mayUseMPS() bool {
	return slices.ContainsFunc(p.served, servedMode.byMPS) || offersMPS(p.checkpoint.offer())
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

func (p *Publisher) mpsOf(g mpsGPU) mpsUser {
	if g.node {
		return p.MPS.OfNode()
	}
	return p.MPS
}

// mpsUses is what the GPUs are used for by each kind of daemon.
func (p *Publisher) mpsUses(m *gpu.Machine, records []state.Record) (map[mpsGPU]mps.Use, error) {
	offer := p.checkpoint.offer()
	uses := map[mpsGPU]mps.Use{}
	for _, g := range m.GPUs {
		// Programs of another driver's pods are not to be kept off the GPU.
		uses[mpsGPU{g.UUID, false}] = mps.Use{Reserved: offersBy(offer, isolation.NameMPS) && offer.Mode != mode.Dynamic &&
			!p.others[g.UUID]}
		uses[mpsGPU{g.UUID, true}] = mps.Use{Reserved: offersBy(offer, isolation.NameMPSNode)}
	}
	for _, r := range records {
		if !usesMPS(r) {
			continue
		}
		isolated, err := isolation.ForClaim(p.Isolation, r.Grants, r.Order)
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
