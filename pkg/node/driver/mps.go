// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mpswatch"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// makeMPSWatch makes what tells of faults under MPS, and of containers that wait for its daemons.
func (a *agent) makeMPSWatch() *mpswatch.Watch {
	return mpswatch.New(mpswatch.Options{Dir: mps.Dir(a.Isolation.MPSDir), Pods: a.namesOf, NodeEvents: a.events,
		Events: report.New(a.podEvents, clock.RealClock{}), Clock: clock.RealClock{}})
}

// namesOf are the names of pods that use prepared claims. Of a record's pods it is not known which name is whose; the
// claim says it.
func (a *agent) namesOf(ctx context.Context, uids map[types.UID]bool) (map[types.UID]types.NamespacedName, error) {
	records, err := a.preparer.Prepared(ctx)
	names := map[types.UID]types.NamespacedName{}
	for _, r := range records {
		pods := slices.Concat(r.Pods, a.pods.UsersOf(r.Namespace, r.Name))
		if !slices.ContainsFunc(pods, func(uid types.UID) bool { return uids[uid] }) {
			continue
		}
		c, readErr := a.reader().Claim(ctx, r.Namespace, r.Name)
		if readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		for _, pod := range cluster.PodsOf(c) {
			if uids[pod.UID] {
				names[pod.UID] = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			}
		}
	}
	return names, err
}
