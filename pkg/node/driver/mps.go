// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mpswatch"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// makeMPSWatch makes what tells of faults under MPS, and of containers that wait for its daemons.
func (a *agent) makeMPSWatch() *mpswatch.Watch {
	return mpswatch.New(mpswatch.Options{Dir: mps.Dir(a.Isolation.MPSDir), Index: a.indexOf, Pods: a.namesOf,
		Events: report.New(a.podEvents, clock.RealClock{}), NodeEvents: a.events, Clock: clock.RealClock{}})
}

func (a *agent) indexOf(uuid string) int {
	if machine := a.preparer.Machine(); machine != nil {
		for _, g := range machine.GPUs {
			if g.UUID == uuid {
				return g.Index
			}
		}
	}
	return -1
}

// namesOf are the names of pods that use prepared claims. A record has UIDs, and names for people; a claim says which
// is whose.
func (a *agent) namesOf(ctx context.Context, uids []types.UID) (map[types.UID]types.NamespacedName, error) {
	records, err := a.preparer.Prepared(ctx)
	errs := []error{err}
	names := map[types.UID]types.NamespacedName{}
	for _, r := range records {
		pods := slices.Concat(r.Pods, a.users.UsersOf(r.Namespace, r.Name))
		if !slices.ContainsFunc(pods, func(uid types.UID) bool { return slices.Contains(uids, uid) }) {
			continue
		}
		c, err := a.reader().Claim(ctx, r.Namespace, r.Name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, user := range c.Status.ReservedFor {
			if slices.Contains(uids, user.UID) {
				names[user.UID] = types.NamespacedName{Namespace: r.Namespace, Name: user.Name}
			}
		}
	}
	return names, errors.Join(errs...)
}
