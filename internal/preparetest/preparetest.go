// SPDX-License-Identifier: Apache-2.0

// Package preparetest stands for the cluster, the node and the listener of a Preparer in
// tests that are about something else.
package preparetest

import (
	"cmp"
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Cluster has no pods, and these claims. Those with a name in Away cannot be read.
type Cluster struct {
	Claims []*resourceapi.ResourceClaim
	Away   map[string]bool
}

// Pods returns none.
func (Cluster) Pods(context.Context, *resourceapi.ResourceClaim) ([]*corev1.Pod, error) {
	return nil, nil
}

// Claim returns the claim of that name, else NotFound.
func (c Cluster) Claim(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	if c.Away[name] {
		return nil, errors.New("API server is away")
	}
	for _, claim := range c.Claims {
		if claim.Namespace == namespace && claim.Name == name {
			return claim, nil
		}
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
}

// AllocatedClaims returns all claims.
func (c Cluster) AllocatedClaims(context.Context) ([]*resourceapi.ResourceClaim, error) {
	return c.Claims, nil
}

// PublishedIsolation returns none.
func (Cluster) PublishedIsolation(context.Context) (map[mode.Mode]string, error) {
	return nil, nil
}

// Base has the edits of any GPU: its device node, named like it, or this one, if it is set.
type Base string

// Common returns none.
func (Base) Common() specs.ContainerEdits { return specs.ContainerEdits{} }

// GPU returns the device node.
func (b Base) GPU(uuid string) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: "/dev/" + cmp.Or(string(b), uuid)}}}, nil
}

// Check returns no error.
func (Base) Check(string) error { return nil }

// Store is that of a node that publishes its GPUs in every mode.
type Store struct{ *state.Store }

// Node is a dynamic node's offer.
func (Store) Node() (state.Node, bool, error) { return state.Node{Published: mode.Dynamic}, true, nil }

// Node has no pod with GPUs without a claim. Which pods run is not known.
type Node struct{}

// Reserved returns nothing.
func (Node) Reserved(context.Context, *gpu.Machine) (held.Reserved, error) {
	return held.Reserved{}, nil
}

// Running returns an error.
func (Node) Running(types.UID) (bool, error) {
	return false, errors.New("it is not known which pods run")
}

// UsersOf returns none.
func (Node) UsersOf(string, string) []types.UID { return nil }

// Listener passes on which records are damaged, and nothing else.
type Listener struct {
	OnDamaged func(ctx context.Context, d state.Damaged)
}

// Released does nothing.
func (Listener) Released(types.UID) {}

// RecordDamaged calls OnDamaged.
func (l Listener) RecordDamaged(ctx context.Context, d state.Damaged) { l.OnDamaged(ctx, d) }
