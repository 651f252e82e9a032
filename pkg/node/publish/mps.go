// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"slices"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
)

// mpsStartLimit is how long the publisher waits for daemons that it has just asked
// for before it says that they are not there. They take a second.
const mpsStartLimit = 10 * time.Second

// wantDaemons has the MPS control daemons started that the modes need, and returns when any were
// last started; zero for never.
func (p *Publisher) wantDaemons(served []servedMode) (started time.Time, err error) {
	byMPS := slices.ContainsFunc(served, servedMode.byMPS)
	byNodeDaemon := slices.ContainsFunc(served, servedMode.byNodeDaemon)
	return p.demand.Want(byMPS, byNodeDaemon)
}

// mpsStarting says whether daemons that were started a moment ago are not there yet; started is
// zero if none were.
func mpsStarting(served []servedMode, started, now time.Time) bool {
	missing := slices.ContainsFunc(served, func(s servedMode) bool { return s.byMPS() && len(s.notIsolated) > 0 })
	return missing && !started.IsZero() && now.Sub(started) < mpsStartLimit
}

func (s servedMode) byMPS() bool { return isolation.ByMPS(s.backend.Name()) }

func (s servedMode) byNodeDaemon() bool { return s.backend.Name() == isolation.NameMPSNode }
