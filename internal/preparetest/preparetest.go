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

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
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

// Node publishes its GPUs in every mode, and no pod has some without a claim. Which pods
// run is not known.
type Node struct{}

// Published is a dynamic node's offer.
func (Node) Published(context.Context) prepare.Published {
	return prepare.Published{Offer: mode.Offer{Mode: mode.Dynamic}}
}

// PublishedIsolation returns that of the default back end.
func (Node) PublishedIsolation(_ context.Context, m mode.Mode) (string, error) {
	backend, err := (&isolation.Registry{}).For(m)
	if err != nil {
		return "", err
	}
	return backend.Name(), nil
}

// Reserved returns nothing.
func (Node) Reserved(context.Context, *gpu.Machine) (deviceplugin.Reserved, error) {
	return deviceplugin.Reserved{}, nil
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

// Changed does nothing.
func (Listener) Changed() {}

// Released does nothing.
func (Listener) Released(types.UID) {}

// RecordDamaged calls OnDamaged.
func (l Listener) RecordDamaged(ctx context.Context, d state.Damaged) { l.OnDamaged(ctx, d) }
