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

// So does a time that is negative.
func TestTimesThatAreNegative(t *testing.T) {
	for _, name := range []string{"CLASS_GRACE", "TEMPLATE_GRACE", "SYNC_DEADLINE"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "-5m")
			err := command().Run(t.Context(), []string{"gpu-compat-controller"})
			for _, said := range []string{name, "-5m", "a time cannot be negative"} {
				if err == nil || !strings.Contains(err.Error(), said) {
					t.Errorf("error %v, want one that says %q", err, said)
				}
			}
		})
	}
}
