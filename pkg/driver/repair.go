package driver

import (
	"context"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/publish"
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
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		limit, cancel := context.WithTimeout(ctx, repairLimit)
		defer cancel()
		err := r.Repair(limit)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			a.events.Clear(v1alpha1.ReasonStateNotRepaired)
		default:
			klog.FromContext(ctx).Error(err, "What is prepared on the node could not all be put up again, will try again", "after", repairInterval)
			a.events.Warn(v1alpha1.ReasonStateNotRepaired, err.Error())
		}
	}, repairInterval)
}

// allocated are the claims of the cluster that are allocated devices of this node.
func (a *agent) allocated(ctx context.Context) ([]*resourceapi.ResourceClaim, error) {
	var out []*resourceapi.ResourceClaim
	err := cluster.EachClaim(ctx, a.Client, func(c *resourceapi.ResourceClaim) {
		if allocatedFrom(c, v1alpha1.PoolName(a.NodeName)) {
			out = append(out, c)
		}
	})
	return out, err
}

func allocatedFrom(c *resourceapi.ResourceClaim, pool string) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == v1alpha1.DriverName && r.Pool == pool {
			return true
		}
	}
	return false
}

// offeredIsolation is by what the users of a card that is offered in the mode are kept
// apart.
func (a *agent) offeredIsolation(ctx context.Context, m mode.Mode) (string, error) {
	return publish.OfferedIsolation(ctx, a.checkpoint(), a.Client, a.NodeName, a.registry, m)
}
