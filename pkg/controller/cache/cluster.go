// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// DeviceTaintRules lists the rules by which administrators taint devices. They are read where somebody
// waits, not watched. served is false where the API server does not serve the
// version that is read, so that there may be some of another.
func DeviceTaintRules(ctx context.Context, client typedresourcev1.DeviceTaintRulesGetter) (
	rules []*resourceapi.DeviceTaintRule, served bool, err error) {
	// The API server's cache will do: the scheduler has its own.
	list, err := client.DeviceTaintRules().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case apierrors.IsForbidden(err):
		return nil, false, fmt.Errorf("list the DeviceTaintRules; apply the manifests of gpu-compat-controller, which allow "+
			"it to: %w", err)
	case err != nil:
		return nil, false, fmt.Errorf("list the DeviceTaintRules: %w", err)
	}
	for i := range list.Items {
		rules = append(rules, &list.Items[i])
	}
	return rules, true, nil
}

// Cluster is what decides where a pod finds devices.
type Cluster struct {
	Nodes   Nodes
	Slices  Slices
	Claims  Claims
	Classes Classes
}

// Cluster asks for nodes, the driver's ResourceSlices, claims and DeviceClasses.
func (r *Reader) Cluster() Cluster { return Cluster{r.Nodes(), r.Slices(), r.Claims(), r.Classes()} }

// Snapshot is what the scheduler's allocator sees of the cluster: what nodes publish is decoded by pools, as the rules
// taint it.
func (c Cluster) Snapshot(pools *view.Pools, rules []*resourceapi.DeviceTaintRule) (scheduling.Snapshot, error) {
	s := scheduling.Snapshot{Claims: c.Claims.List(), Classes: c.Classes.List()}
	for _, node := range c.Nodes.List() {
		s.Nodes = append(s.Nodes, node.Node())
		newest, whole := view.Newest(node.Name, c.Slices.OnNode(node.Name))
		if !whole {
			continue
		}
		offered, err := pools.ForAllocator(node.Name, newest)
		if err != nil {
			return s, err
		}
		s.Slices = append(s.Slices, scheduling.WithRules(offered, rules)...)
	}
	return s, nil
}
