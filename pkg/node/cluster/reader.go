// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Reader asks the API server about the claims of a node's pool and their pods, and what the node publishes; it is what
// a prepare.Preparer asks.
type Reader struct {
	Client   kubernetes.Interface
	NodeName string
}

// PublishedIsolation returns by what the users of the node's GPUs are kept apart, by mode, as the API server shows it.
func (r Reader) PublishedIsolation(ctx context.Context) (map[mode.Mode]string, error) {
	stored, err := StoredSlices(ctx, r.Client, r.NodeName)
	if err != nil {
		return nil, fmt.Errorf("look up how the published GPUs are isolated: %w", err)
	}
	return IsolationOf(stored), nil
}

// Claim reads the claim of that name. That there is none is the API server's NotFound.
func (r Reader) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return r.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// AllocatedClaims lists the claims of the cluster that are allocated devices of the pool,
// those with administrator access too.
func (r Reader) AllocatedClaims(ctx context.Context) ([]*resourceapi.ResourceClaim, error) {
	var out []*resourceapi.ResourceClaim
	pool := v1alpha1.PoolName(r.NodeName)
	err := EachClaim(ctx, r.Client, func(c *resourceapi.ResourceClaim) {
		if allocatedFrom(c, pool) {
			out = append(out, c)
		}
	})
	return out, err
}

func allocatedFrom(c *resourceapi.ResourceClaim, pool string) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == v1alpha1.DriverName && r.Pool == pool {
			return true
		}
	}
	return false
}
