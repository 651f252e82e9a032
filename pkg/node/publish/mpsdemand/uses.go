// SPDX-License-Identifier: Apache-2.0

package mpsdemand

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Offered is what is published.
type Offered struct {
	Machine *gpu.Machine
	Offer   mode.Offer
	// Others are the GPUs that other drivers, or pods without a claim, have any of, by UUID: also those that are
	// left out.
	Others map[string]bool
}

// by reports whether GPUs are published for clients of that daemon.
func (o Offered) by(daemon mode.Daemon) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(o.Offer.Isolation)), func(name string) bool {
		return mode.IsolationNamed(name).Daemon == daemon
	})
}

func (o Offered) byMPS() bool { return o.by(mode.DaemonOfGPU) || o.by(mode.DaemonOfNode) }

// has reports whether the GPU can be handed out.
func (o Offered) has(uuid string) bool {
	return slices.ContainsFunc(o.Machine.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid })
}

// daemonGPU is a GPU as one kind of daemon has it.
type daemonGPU struct {
	uuid string
	by   mode.Daemon
}

// daemonOf is how that kind of daemon is told what GPUs are used for.
func (d *Demand) daemonOf(g daemonGPU) MPS {
	if g.by == mode.DaemonOfNode {
		return d.MPS.OfNode()
	}
	return d.MPS
}

// uses is what the GPUs are used for by each kind of daemon, also those GPUs that are lost and served by
// a daemon for all that nothing needs any more: it ends when none of its GPUs is used. Of a GPU that the
// machine lacks, or that is unread, it is not known who else has it: others who were told of stay Beside.
func (d *Demand) uses(o Offered, records []state.Record) (map[daemonGPU]mps.Use, error) {
	uses, err := o.uses(d.Isolation, records)
	if err != nil {
		return nil, err
	}
	for of, use := range uses {
		if of.by == mode.DaemonOfNode || o.has(of.uuid) {
			continue
		}
		// Where what was told is lost, so is who it was told of.
		last, lost := d.MPS.Use(of.uuid)
		use.Beside = use.Beside || last.Beside || lost != nil
		uses[of] = use
	}
	d.mu.Lock()
	needed := d.nodeUsed()
	d.mu.Unlock()
	if needed {
		return uses, nil
	}
	served, err := d.MPS.OfNode().Served()
	for _, uuid := range served {
		of := daemonGPU{uuid, mode.DaemonOfNode}
		if _, there := uses[of]; !there {
			uses[of] = mps.Use{}
		}
	}
	return uses, err
}

// uses is what the GPUs are used for by each kind of daemon, where the records' claims are
// prepared.
func (o Offered) uses(backends isolation.Backends, records []state.Record) (map[daemonGPU]mps.Use, error) {
	uses := map[daemonGPU]mps.Use{}
	for _, g := range o.Machine.GPUs {
		// Programs of another driver's pods, or of a device plugin's, are not to be kept off the GPU.
		byMPS, others := o.by(mode.DaemonOfGPU) && o.Offer.Mode != mode.Dynamic, o.Others[g.UUID]
		uses[daemonGPU{g.UUID, mode.DaemonOfGPU}] = mps.Use{Reserved: byMPS && !others, Beside: byMPS && others}
		// The one daemon takes all GPUs, or none.
		uses[daemonGPU{g.UUID, mode.DaemonOfNode}] = mps.Use{Reserved: o.by(mode.DaemonOfNode) && len(o.Others) == 0}
	}
	for _, r := range records {
		if !usesMPS(r) {
			continue
		}
		isolated, err := isolation.ForClaim(backends, r.UID, r.Grants, r.Order)
		if err != nil {
			return nil, fmt.Errorf("claim %s/%s: %w", r.Namespace, r.Name, err)
		}
		for _, daemon := range []mode.Daemon{mode.DaemonOfGPU, mode.DaemonOfNode} {
			for uuid, limits := range isolated.MPSLimits(daemon) {
				of := daemonGPU{uuid, daemon}
				use := uses[of].With(limits)
				use.Beside = use.Beside || daemon == mode.DaemonOfGPU && o.Others[uuid]
				uses[of] = use
			}
		}
	}
	return uses, nil
}

// usesMPS reports whether a claim is, or may be, held to its share by MPS: records of older
// versions do not say by what.
func usesMPS(r state.Record) bool {
	return slices.ContainsFunc(r.Grants, func(g claim.Grant) bool {
		return mode.ByMPS(g.Isolation) || g.Isolation == "" && isolation.Capped(g.Mode)
	})
}
