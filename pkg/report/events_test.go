// SPDX-License-Identifier: Apache-2.0

package report

import "testing"

// Whoever reads a node's Events knows the node's paths, not those in the container.
func TestEventsNamePathsOfTheHost(t *testing.T) {
	for message, want := range map[string]string{
		"looking for libnvidia-ml.so.1 in the driver root /host/run/nvidia/driver: not found": "" +
			"looking for libnvidia-ml.so.1 in the driver root /run/nvidia/driver: not found",
		"/host/a, /host/b: no such file":        "/a, /b: no such file",
		"open \"/host/a/host/b\": no such file": "open \"/a/host/b\": no such file",
		"the driver root /host: empty":          "the driver root /: empty",
		"the driver root /host":                 "the driver root /",
		"/srv/host/a and /hosts and host/a":     "/srv/host/a and /hosts and host/a",
		"nothing of the kind":                   "nothing of the kind",
	} {
		if got := onHost(message, "/host"); got != want {
			t.Errorf("of %q: %q, want %q", message, got, want)
		}
	}
	if got := onHost("open /host/a", "/"); got != "open /host/a" {
		t.Errorf("on the host itself: %q", got)
	}
}
