// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

// listRules lists the DeviceTaintRules; none where the API server does not know them.
func (p *preemptor) listRules(ctx context.Context) ([]*resourceapi.DeviceTaintRule, error) {
	rules, _, err := cache.DeviceTaintRules(ctx, p.Rules)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("pods may be evicted in vain without the DeviceTaintRules; apply the manifests of "+
			"gpu-compat-controller, which allow it to list them: %w", err)
	case err != nil:
		return nil, fmt.Errorf("pods may be evicted in vain without the DeviceTaintRules: %w", err)
	}
	return rules, nil
}
