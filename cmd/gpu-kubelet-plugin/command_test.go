// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A user's pod runs `given` in the driver's image, as demo/first-claim.yaml does: it has none of the
// plugin's settings.
func TestGivenNeedsNoSettings(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	err := command().Run(t.Context(), []string{"gpu-kubelet-plugin", "given"})
	if err != nil && !strings.Contains(err.Error(), "this container was given no GPU") {
		t.Errorf("given: %v", err)
	}
}

// The plugin itself does not start without its node's name, and says what to set.
func TestThePluginNeedsItsNode(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	expect.Error(t, command().Run(t.Context(), []string{"gpu-kubelet-plugin"}), "NODE_NAME")
}

// What is wrong with a setting stands in its log, and settings.Watch refuses what the flags refuse.
func TestSettingsThatThePluginDoesNotStartWith(t *testing.T) {
	for _, setting := range [][3]string{{"KUBE_API_BURST", "0", "less than 1"}, {"KUBE_API_BURST", "-1", "less than 1"},
		{"GPU_READ_INTERVAL", "500ms", "less than 1s"}} {
		t.Run(setting[0], func(t *testing.T) {
			t.Setenv(setting[0], setting[1])
			err := command().Run(t.Context(), []string{"gpu-kubelet-plugin"})
			expect.Error(t, err, setting[:]...)
		})
	}
}
