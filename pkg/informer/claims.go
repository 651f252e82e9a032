// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// claimsByNode is an index of ResourceClaims.
const claimsByNode = "allocatedFrom"

// AllocatedFrom is the node whose cards a claim was allocated; empty where it has none
// of the driver.
func AllocatedFrom(claim *resourceapi.ResourceClaim) string {
	if claim.Status.Allocation == nil {
		return ""
	}
	results := claim.Status.Allocation.Devices.Results
	i := slices.IndexFunc(results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == v1alpha1.DriverName
	})
	if i < 0 {
		return ""
	}
	return strings.TrimSuffix(results[i].Pool, v1alpha1.PoolName(""))
}

// IndexClaims makes an informer of claims know them by the node that they were allocated
// cards of. Several loops may ask for it. The informer must not run yet.
func IndexClaims(claims cache.SharedIndexInformer) error {
	if _, there := claims.GetIndexer().GetIndexers()[claimsByNode]; there {
		return nil
	}
	err := claims.AddIndexers(cache.Indexers{claimsByNode: func(object any) ([]string, error) {
		claim, ok := object.(*resourceapi.ResourceClaim)
		if !ok {
			return nil, nil
		}
		if node := AllocatedFrom(claim); node != "" {
			return []string{node}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("index the ResourceClaims by node: %w", err)
	}
	return nil
}

// ClaimsOf returns the claims that were allocated a node's cards, of an informer with
// IndexClaims.
func ClaimsOf(claims cache.SharedIndexInformer, node string) ([]*resourceapi.ResourceClaim, error) {
	objects, err := claims.GetIndexer().ByIndex(claimsByNode, node)
	if err != nil {
		return nil, fmt.Errorf("look up the ResourceClaims that have GPUs of node %s: %w", node, err)
	}
	return typed[*resourceapi.ResourceClaim](objects), nil
}
