// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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

// Each read of a node goes through what was promised there: in a burst that would be all pods of the last seconds.
func TestPromisesEndWhenTheCachesShowThem(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("first", claimOf(whole, "", 1))
		s.nominated("at once", "first", "a")
		s.change("first", func(p *corev1.Pod) { p.Spec.NodeName = "a" })
		s.waits("second", claimOf(whole, "", 1))
		s.nominated("beside a claim that does not show yet", "second", "a")
		promised := func() []types.UID {
			return slices.Sorted(maps.Keys(s.nominator.chooser.promises))
		}
		expect.Equal(t, []types.UID{"uid-first", "uid-second"}, promised(), "promises until the claim shows")
		s.takes("first", "a", "first", "gpu-0")
		synctest.Wait() // caches of claims and of pods fill independently
		s.waits("third", claimOf(whole, "", 1))
		s.nominated("when both GPUs are promised", "third", "")
		expect.Equal(t, []types.UID{"uid-second"}, promised(), "promises afterwards")
	}, "a")
}
