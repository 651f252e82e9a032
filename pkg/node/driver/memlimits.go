// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/limitwatch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

func (a *agent) makeMemoryLimits() *limitwatch.Watch {
	root := a.GPUs.Local(a.Isolation.Kernel.CgroupRoot)
	return limitwatch.New(limitwatch.Options{
		Config: a.Isolation.Kernel, Library: a.GPUs.SourceOptions, Root: root, Pods: podcgroup.New(root, a.PodUID),
		Found: a.registry.SetKernelLimits, Looked: &a.held, Rewrite: a.recoverAgain,
		Prepared: a.heldByKernel, Changed: &a.changed,
		Events: a.events, Counts: a.counts, Clock: clock.RealClock{},
	})
}

// heldByKernel are the prepared claims whose memory the kernel limits.
func (a *agent) heldByKernel(ctx context.Context) (map[types.UID]string, error) {
	if complete, err := a.preparer.Complete(); err != nil || !complete {
		return nil, errors.Join(err, errIncomplete)
	}
	records, err := a.preparer.Prepared(ctx)
	names := map[types.UID]string{}
	for _, r := range records {
		if slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.KernelMemory }) {
			names[r.UID] = r.Namespace + "/" + r.Name
		}
	}
	return names, err
}
