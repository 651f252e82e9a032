// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// What is wrong with a setting stands in the log of the pod that does not start.
func TestALeaseThatIsTooShort(t *testing.T) {
	t.Setenv("LEADER_ELECT_LEASE_DURATION", "3s")
	err := command().Run(t.Context(), []string{"gpu-compat-controller"})
	for _, said := range []string{"LEADER_ELECT_LEASE_DURATION", "leader-elect-lease-duration", "3s", "from 5s to 3m0s"} {
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("error %v, want one that says %q", err, said)
		}
	}
}
