// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Reader asks the API server about the claims of one pool and their pods; it is what a
// prepare.Preparer asks.
type Reader struct {
	Client kubernetes.Interface
	Pool   string
}

// Claim reads the claim of that name. That there is none is the API server's NotFound.
func (r Reader) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return r.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// AllocatedClaims lists the claims of the cluster that are allocated devices of the pool,
// those with administrator access too.
func (r Reader) AllocatedClaims(ctx context.Context) ([]*resourceapi.ResourceClaim, error) {
	var out []*resourceapi.ResourceClaim
	err := EachClaim(ctx, r.Client, func(c *resourceapi.ResourceClaim) {
		if allocatedFrom(c, r.Pool) {
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
