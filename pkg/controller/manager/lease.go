// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"fmt"
	"time"
)

// DefaultLeaseDuration is Kubernetes' own for its controllers.
const DefaultLeaseDuration = 15 * time.Second

// Three seconds without an answer, as while etcd elects, must not end a leader; and between
// the end of one and the start of the next lies more than a second, by which client-go's
// replicas may believe a lease to be older than it is: they compare its times by whole
// seconds. Alerts say after five minutes that nobody leads.
const (
	minLeaseDuration = 5 * time.Second
	maxLeaseDuration = 3 * time.Minute
)

// CheckLeaseDuration refuses durations that Lead does not take.
func CheckLeaseDuration(d time.Duration) error {
	why := ""
	switch {
	case d < minLeaseDuration:
		why = "with a shorter one a leader would end whenever the API server is slow"
	case d > maxLeaseDuration:
		why = "with a longer one nobody would do the work for as long when a leader is killed"
	case d%time.Second != 0:
		why = "a Lease has no fractions of a second"
	default:
		return nil
	}
	return fmt.Errorf("a lease of %s: give whole seconds from %s to %s: %s", d, minLeaseDuration, maxLeaseDuration, why)
}

// renewal is for how long a leader tries to renew a lease, and how often, in the ratio of
// Kubernetes' defaults, 10 s and 2 s of 15 s.
func renewal(lease time.Duration) (deadline, period time.Duration) {
	return (lease * 10 / 15).Truncate(time.Millisecond), (lease * 2 / 15).Truncate(time.Millisecond)
}
