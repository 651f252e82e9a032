// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// What is wrong with a setting stands in the log of the pod that does not start.
func TestALeaseThatIsTooShort(t *testing.T) {
	t.Setenv("LEADER_ELECT_LEASE_DURATION", "3s")
	err := command().Run(t.Context(), []string{"gpu-compat-controller"})
	expect.Error(t, err, "LEADER_ELECT_LEASE_DURATION", "leader-elect-lease-duration", "3s", "from 5s to 3m0s")
}

// So it does of others, and settings.Watch refuses what the flags refuse.
func TestSettingsThatTheControllerDoesNotStartWith(t *testing.T) {
	const negative, port = "a time cannot be negative", "missing port in address"
	for _, setting := range [][3]string{{"CLASS_GRACE", "-5m", negative}, {"TEMPLATE_GRACE", "-5m", negative},
		{"SYNC_DEADLINE", "-5m", negative}, {"HEALTH_ADDRESS", "8082", port}, {"HEALTH_ADDRESS", ":99999", "invalid port"}} {
		t.Run(setting[0], func(t *testing.T) {
			t.Setenv(setting[0], setting[1])
			err := command().Run(t.Context(), []string{"gpu-compat-controller"})
			expect.Error(t, err, setting[:]...)
		})
	}
}
