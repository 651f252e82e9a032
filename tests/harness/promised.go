// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// CheckPromised looks at what claims were allocated of the memory of a node's GPUs,
// and at what pods without a claim hold by their annotations: together no more than
// there is. Claims are read first: what was allocated after an old pod's end must not
// meet that pod.
func (c *Cluster) CheckPromised(ctx context.Context, node string, gpus []gpu.GPU) error {
	claims, err := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := c.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	units := map[int]int64{}
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			indices, _, err := devices.ParseDeviceName(r.Device)
			if r.Pool != v1alpha1.PoolName(node) || err != nil {
				continue
			}
			memory := r.ConsumedCapacity[v1alpha1.CapMemory]
			units[indices[0]] += memory.Value() / devices.GiB
		}
	}
	for i := range pods.Items {
		held, _ := deviceplugin.Read(&pods.Items[i], deviceplugin.Node{GPUs: gpus})
		for _, s := range held.Shares {
			units[s.GPU] += s.Units
		}
	}
	for _, g := range gpus {
		if units[g.Index] > g.MemoryUnits() {
			return fmt.Errorf("%d of %d GiB of GPU %d of node %s are promised", units[g.Index], g.MemoryUnits(), g.Index, node)
		}
	}
	return nil
}
