// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// gate is a part of Kubernetes that is off by default.
type gate struct {
	// features are feature gates of the API server, the scheduler and the controller
	// manager, apis the versions that the API server serves for it.
	features, apis []string
	// lacking are the versions of Kubernetes that do not have all of it.
	lacking []string
}

// gates are those that a cluster can have, by the names that Wanted.Gates takes.
func gates() map[string]gate {
	return map[string]gate{
		// Gangs: PodGroups (KEP-4671).
		"gang": {features: []string{"GenericWorkload"}, apis: []string{"scheduling.k8s.io/v1beta1"},
			lacking: []string{"1.36"}},
	}
}

func checkGates(names []string, kubernetes string) error {
	known := gates()
	for _, name := range names {
		g, ok := known[name]
		if !ok {
			return fmt.Errorf("there is no gate %q: known are %q", name, slices.Sorted(maps.Keys(known)))
		}
		if slices.Contains(g.lacking, kubernetes) {
			return fmt.Errorf("gate %q: Kubernetes %s does not serve %s: leave the gate out, or name a newer Kubernetes",
				name, kubernetes, strings.Join(g.apis, ", "))
		}
	}
	return nil
}

// gateFlags are the flags of a component of the control plane for the cluster's gates.
func (s *state) gateFlags() []string {
	return s.enabling("--feature-gates=", func(g gate) []string { return g.features })
}

// apiFlags are those that the API server has besides.
func (s *state) apiFlags() []string {
	return s.enabling("--runtime-config=", func(g gate) []string { return g.apis })
}

// enabling is the flag that enables something of each of the cluster's gates; none where
// there is nothing.
func (s *state) enabling(flag string, of func(gate) []string) []string {
	var enabled []string
	for _, name := range s.Gates {
		for _, what := range of(gates()[name]) {
			enabled = append(enabled, what+"=true")
		}
	}
	if len(enabled) == 0 {
		return nil
	}
	return []string{flag + strings.Join(enabled, ",")}
}
