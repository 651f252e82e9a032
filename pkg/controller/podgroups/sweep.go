// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

// sweep has the PodGroups looked at whose pods went while no replica watched.
func (k *keeper) sweep(ctx context.Context, served bool) error {
	if !served {
		return nil
	}
	list, err := k.Client.PodGroups(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ControllerName}.String(),
	})
	if err != nil {
		return fmt.Errorf("list the PodGroups of gangs: %w", err)
	}
	for i := range list.Items {
		key := cache.Key(&list.Items[i])
		k.mu.Lock()
		if _, known := k.observed[key]; !known {
			k.observed[key] = observed{minCount: 1}
		}
		k.mu.Unlock()
		k.enqueue(key)
	}
	return nil
}
