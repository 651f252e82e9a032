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
	case err != nil:
		return nil, false, fmt.Errorf("list the DeviceTaintRules: %w", err)
	}
	for i := range list.Items {
		rules = append(rules, &list.Items[i])
	}
	return rules, true, nil
}

// Snapshot is what the scheduler's allocator sees of nodes: what they publish, decoded by pools, as the rules taint it.
func Snapshot(nodes Nodes, published Slices, pools *view.Pools, rules []*resourceapi.DeviceTaintRule) (
	s scheduling.Snapshot, err error) {
	for _, node := range nodes.List() {
		s.Nodes = append(s.Nodes, node.Node())
		newest, whole := view.Newest(node.Name, published.OnNode(node.Name))
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
