// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// What a node of several slices offers is read once, in whatever order the cache lists them.
func TestSlicesInAnyOrder(t *testing.T) {
	n := clusterOf(t.Context(), t, mode.Topology, 1)
	const name = "node-0"
	first := n.chooser.known[name].offering
	if len(first.published) < 2 {
		t.Fatalf("the node has %d slices", len(first.published))
	}
	for range 50 {
		n.chooser.changed(name)
		if err := n.chooser.refresh(); err != nil || n.chooser.known[name].offering != first {
			t.Fatalf("error %v: what the node offers was read again", err)
		}
	}
}
