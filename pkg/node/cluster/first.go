// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// WriteFirst writes the ResourceSlices of a node that has none of this driver, as the controller of
// k8s.io/dynamic-resource-allocation/resourceslice names and numbers them, so that it takes them for its own.
// That controller waits for a second before it writes anything; call WriteFirst before it is started, and it
// lists what was written. Where the node has slices, nothing is done. After an error some may be written: the
// controller completes or replaces them.
func WriteFirst(ctx context.Context, client kubernetes.Interface, nodeName string, nodeUID types.UID,
	resources resourceslice.DriverResources) error {
	stored, err := StoredSlices(ctx, client, nodeName)
	if err != nil {
		return fmt.Errorf("look whether node %s has ResourceSlices: %w", nodeName, err)
	}
	if len(stored) > 0 {
		return nil
	}
	for name, pool := range resources.Pools {
		for i, s := range pool.Slices {
			slice := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{
					GenerateName: fmt.Sprintf("%05x-%s-%s-", i, v1alpha1.DriverName, nodeName),
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: nodeUID,
						Controller: ptr.To(true)}},
				},
				Spec: devices.SliceSpec(nodeName, name, pool, s),
			}
			if _, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("write the first ResourceSlices of node %s: %w", nodeName, err)
			}
		}
	}
	return nil
}
