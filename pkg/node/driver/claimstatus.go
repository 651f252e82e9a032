// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/claimstatus"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// makeStatuses makes what shows in the status of claims what they have; nil where nothing is
// to.
func (a *agent) makeStatuses() *claimstatus.Keeper {
	if a.StatusClient == nil {
		return nil
	}
	return claimstatus.New(claimstatus.Options{Client: a.StatusClient.ResourceV1(), Prepared: a.claimStatuses,
		Changed: &a.changed, Releases: a.releases, Clock: clock.RealClock{}, Written: a.counts.StatusWritten})
}

// claimStatuses are what the status of each prepared claim is to be.
func (a *agent) claimStatuses(ctx context.Context) ([]claimstatus.Claim, error) {
	records, err := a.preparer.Recent(ctx)
	if err != nil {
		return nil, err
	}
	facts := claimstatus.Facts{Machine: a.preparer.Machine(), Unhealthy: map[string]string{}, Level: a.isolationLevel()}
	for _, d := range a.publisher.Health(records) {
		facts.Unhealthy[d.Device] = d.Message
	}
	records = slices.DeleteFunc(records, func(r state.Record) bool { return r.Phase != state.Prepared })
	var grants []claim.Grant
	for _, r := range records {
		grants = append(grants, r.Grants...)
	}
	facts.TimeSlices = claim.TimeSlices(grants)
	claims := make([]claimstatus.Claim, 0, len(records))
	for i, unusable := range a.preparer.Usable(records) {
		r := records[i]
		facts.NotReady = ""
		if unusable != nil {
			facts.NotReady = unusable.Error()
		}
		devices, err := claimstatus.Of(r.Grants, facts)
		if err != nil {
			return nil, fmt.Errorf("claim %s/%s: %w", r.Namespace, r.Name, err)
		}
		claims = append(claims, claimstatus.Claim{Namespace: r.Namespace, Name: r.Name, UID: r.UID, Devices: devices})
	}
	return claims, nil
}

// isolationLevel is that of a grant: what its device shows, as long as it is published with
// the same isolation, else that of the back end.
func (a *agent) isolationLevel() func(claim.Grant) string {
	type device struct{ name, isolation string }
	published := map[device]string{}
	for _, d := range a.publisher.Status().Devices {
		published[device{d.Name, d.Isolation}] = d.IsolationLevel
	}
	return func(g claim.Grant) string {
		if level, is := published[device{g.Device, g.Isolation}]; is {
			return level
		}
		backend, err := isolation.Find(a.registry, g.Isolation, g.Mode)
		if err != nil {
			return ""
		}
		return string(mode.IsolationNamed(backend.Name()).Level)
	}
}
