// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Autoscalers take a node for ready when the driver has published one complete pool for it. Karpenter tells by the
// owner of a slice of which node it is.
func TestEachNodeOwnsOneCompletePool(t *testing.T) {
	nodes, err := cluster.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	for _, node := range nodes.Items {
		published, err := cluster.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{
			FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + v1alpha1.DriverName + "," +
				resourceapi.ResourceSliceSelectorNodeName + "=" + node.Name})
		expect.NoError(t, err)
		pools := map[resourceapi.ResourcePool]int64{}
		for _, slice := range published.Items {
			pools[slice.Spec.Pool]++
			if owners := slice.OwnerReferences; len(owners) != 1 || owners[0].Kind != "Node" ||
				owners[0].UID != node.UID || !ptr.Deref(owners[0].Controller, false) {
				t.Errorf("ResourceSlice %s of node %s has the owners %+v, want the node alone", slice.Name, node.Name, owners)
			}
		}
		if len(pools) != 1 {
			t.Errorf("node %s has the pools %v, want one", node.Name, pools)
		}
		for pool, there := range pools {
			if there != pool.ResourceSliceCount {
				t.Errorf("node %s has %d slices of %+v", node.Name, there, pool)
			}
		}
	}
}
