// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// snapshot is all that a pass uses, read once: what is decided in it is decided on one state
// of the node.
type snapshot struct {
	given
	memory
	pool            string
	now             time.Time
	unhealthyEffect resourceapi.DeviceTaintEffect
	// nvidia is devices.Options.NVIDIA.
	nvidia bool

	// records are those of the claims that are prepared, unless unlisted says why they cannot
	// be read.
	records  []state.Record
	unlisted error
	// reserved is what pods without a claim hold, and other drivers.
	reserved held.Reserved
	// failed is why what follows could not be read.
	failed error
	// asked is what the node asks for, and served how what was last published is, unless
	// notServed says why that cannot be told; both with how a GPU's users are kept apart now.
	asked     desired
	served    []servedMode
	notServed error
	// daemonsStarted is when the MPS control daemons were last started; zero for never.
	daemonsStarted time.Time
	// tooOld says why the cluster is too old for mode dynamic, where that is asked for.
	tooOld error

	// occupants keep the node in its mode. They are dear to find, and nil until a plan lacks them.
	occupants *allocations
	// missing says that the API server would not keep what is planned.
	missing *cluster.MissingFeatureError
	// stored are the node's slices as the API server has them; nil until a plan lacks them.
	stored *[]resourceapi.ResourceSlice
}

// lack is what is not read before a plan turns out to need it: it takes asking the API server.
type lack string

const (
	lacksNothing   lack = ""
	lacksOccupants lack = "who has devices that are to be published otherwise"
	lacksRetained  lack = "which sets of GPUs may be allocated that the machine has no more"
	lacksPreflight lack = "whether the API server would keep what is planned"
	lacksStored    lack = "whether it has what was published"
	lacksOpening   lack = "since when it shows the devices as they were opened again"
	lacksClosing   lack = "since when it shows the devices as closed to new claims"
)

// closedFor is for how long the API server has shown the devices as closed to new claims.
func (s snapshot) closedFor() time.Duration {
	if s.closedSince.IsZero() {
		return 0
	}
	return s.now.Sub(s.closedSince)
}

// prepared are the records of the claims that are prepared.
func (s snapshot) prepared() ([]state.Record, error) {
	if s.unlisted != nil {
		return nil, fmt.Errorf("look up which claims are prepared: %w", s.unlisted)
	}
	return s.records, nil
}

// memory is what one pass leaves to the next. Nobody but the passes knows it.
type memory struct {
	restored   bool // the checkpoint is the NodeState's
	checkpoint state.Node
	// lastDropped is the value of dropped when last was published, rewrite when the same may be published again
	// because of it.
	lastDropped int
	rewrite     backoff.Tries
	// refusalsSeen are those after which the API server had what was published, reread when it may be asked again
	// what it has.
	refusalsSeen int
	reread       backoff.Tries
	// last, layout and retained are as last published.
	last     *resourceslice.DriverResources
	layout   usage.Layout
	retained retainedSets
	// closedSince is when the API server first showed the devices as closed to new claims; zero
	// while they are open. reopened says that they have been closed before they were published last.
	closedSince time.Time
	reopened    bool
	drainCheck  drainCheck
	// watched are the modes last asked for, as their isolation was then.
	watched    []servedMode
	annotation annotation
	lifting    lifting
	// devicePluginGoneSince is when the node was first seen without the resources of a device
	// plugin that the checkpoint names.
	devicePluginGoneSince time.Time
	// preflighted is what the last preflight that succeeded asked for, droppedSeen the value of
	// dropped that it knew.
	preflighted cluster.Features
	droppedSeen int
	version     cluster.Version
	// listed are the records as they could last be listed.
	listed []state.Record
	// goneClaims are those that were told that their MIG instances are gone.
	goneClaims map[types.UID]goneClaim
	// made are the MIG instances that were made for claims, by UUID.
	made map[string]firstSeen
}

func (p *Publisher) pool() string { return v1alpha1.PoolName(p.NodeName) }

// stored lists the node's slices as the API server has them.
func (p *Publisher) stored(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	return cluster.StoredSlices(ctx, p.Client, p.NodeName)
}

// allClosed reports whether no stored device is open to new claims in the midst of
// a change of the mode.
func allClosed(stored []resourceapi.ResourceSlice) bool {
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			if _, m, err := devices.ParseDeviceName(d.Name); err == nil && !m.OfNode() {
				continue // in the way of no mode
			}
			if !slices.ContainsFunc(d.Taints, devices.IsTaint(v1alpha1.TaintSwitching)) {
				return false
			}
		}
	}
	return true
}

// holds reports whether the stored slices are those of the resources.
func holds(stored []resourceapi.ResourceSlice, resources resourceslice.DriverResources) bool {
	want := 0
	for _, pool := range resources.Pools {
		want += len(pool.Slices)
		for _, slice := range pool.Slices {
			if !slices.ContainsFunc(stored, func(s resourceapi.ResourceSlice) bool {
				return resourceslice.DevicesDeepEqual(s.Spec.Devices, slice.Devices) &&
					apiequality.Semantic.DeepEqual(s.Spec.SharedCounters, slice.SharedCounters)
			}) {
				return false
			}
		}
	}
	return len(stored) == want
}

// errNoNode cannot happen once the agent runs: it reads the node first.
var errNoNode = errors.New("the node has not been read yet")

// observe reads what a pass uses, and does nothing else.
func (p *Publisher) observe(ctx context.Context) (snapshot, error) {
	s, err := p.known(ctx)
	if err == nil {
		s.reserved, err = p.Pods.Observe(ctx, s.machine)
	}
	return s, err
}

// known is what was told, what is prepared, and what the last pass left.
func (p *Publisher) known(ctx context.Context) (snapshot, error) {
	s := snapshot{given: p.inputs(), memory: p.memory, pool: p.pool(), now: p.Clock.Now(),
		unhealthyEffect: p.UnhealthyEffect, nvidia: p.NVIDIA}
	if s.node == nil {
		return s, errNoNode
	}
	s.records, s.unlisted = p.Claims.Prepared(ctx)
	return s, nil
}
