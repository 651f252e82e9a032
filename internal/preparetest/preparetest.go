// SPDX-License-Identifier: Apache-2.0

// Package preparetest stands for the cluster, the node and the listener of a Preparer in
// tests that are about something else.
package preparetest

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Cluster has no pods and no claims: nobody uses a claim any more, or nothing that
// matters here.
type Cluster struct{}

// Pods returns none.
func (Cluster) Pods(context.Context, *resourceapi.ResourceClaim) ([]*corev1.Pod, error) {
	return nil, nil
}

// Claim returns NotFound.
func (Cluster) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
}

// AllocatedClaims returns none.
func (Cluster) AllocatedClaims(context.Context) ([]*resourceapi.ResourceClaim, error) {
	return nil, nil
}

// PublishedIsolation returns none.
func (Cluster) PublishedIsolation(context.Context) (map[mode.Mode]string, error) {
	return nil, nil
}

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
