// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
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
	err := command().Run(t.Context(), []string{"gpu-kubelet-plugin"})
	if err == nil || !strings.Contains(err.Error(), "NODE_NAME") {
		t.Errorf("the plugin without a node's name: %v", err)
	}
}
