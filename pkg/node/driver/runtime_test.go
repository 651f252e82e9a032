// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// By cri-dockerd pods ran without their GPUs, and nobody said so (Mirantis/cri-dockerd issue 558).
func TestRuntimesThatTakeNoDevices(t *testing.T) {
	for name, want := range map[string]bool{
		"docker://29.4.0": true, "containerd://2.4.2": false, "cri-o://1.36.0": false,
	} {
		t.Run(name, func(t *testing.T) {
			a := &agent{}
			a.GPUs.HostRoot = t.TempDir()
			a.runtimeName.Store(&name)
			blind, known := a.askRuntime(t.Context())
			expect.Equal(t, want, known, "it is known")
			if want {
				expect.Error(t, blind, name, "none gets a GPU", "containerd")
			}
		})
	}
}
