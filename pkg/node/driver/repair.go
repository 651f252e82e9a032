// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

const (
	// repairInterval is for how long at most a container cannot be started again whose
	// CDI spec somebody removed, repairLimit how long one look may take.
	repairInterval = 10 * time.Second
	repairLimit    = time.Minute
)

// repair puts up again, time after time, what somebody removed on the node.
func (a *agent) repair(ctx context.Context) {
	r := &prepare.Repairer{Preparer: a.preparer, Now: time.Now}
	beat.Until(ctx, clock.RealClock{}, repairInterval, func(ctx context.Context) {
		limit, cancel := context.WithTimeout(ctx, repairLimit)
		defer cancel()
		err := r.Repair(limit)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			a.events.Clear(v1alpha1.ReasonStateNotRepaired)
		default:
			klog.FromContext(ctx).Error(err, "What is prepared on the node could not all be put up again, will try again",
				"after", repairInterval)
			a.events.Warn(v1alpha1.ReasonStateNotRepaired, err.Error())
		}
	})
}
