// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// listRules lists the DeviceTaintRules; none where the API server does not know them.
func (p *preemptor) listRules(ctx context.Context) ([]*resourceapi.DeviceTaintRule, error) {
	// The API server's cache will do: the scheduler has its own.
	list, err := p.Rules.DeviceTaintRules().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("list the DeviceTaintRules, without which pods may be evicted in vain; apply "+
			"deployments/options/preemption, which allows it: %w", err)
	case err != nil:
		return nil, fmt.Errorf("list the DeviceTaintRules, without which pods may be evicted in vain: %w", err)
	}
	rules := make([]*resourceapi.DeviceTaintRule, 0, len(list.Items))
	for i := range list.Items {
		rules = append(rules, &list.Items[i])
	}
	return rules, nil
}
