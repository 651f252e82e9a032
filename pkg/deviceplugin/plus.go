// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"maps"
	"slices"
)

// Plus returns what is taken with what holder holds of the GPU with the UUID beside
// these pods: something that has no claim either. The holder is named among the GPU's
// pods.
func (t Reserved) Plus(uuid, holder string, more Taken) Reserved {
	gpus := maps.Clone(t.gpus)
	if gpus == nil {
		gpus = map[string]GPU{}
	}
	g := gpus[uuid]
	g.Taken = g.plus(more)
	g.MemoryOnly = g.MemoryOnly || more.Units > 0 && more.Cores == 0
	g.Pods = append(slices.Clip(g.Pods), holder)
	gpus[uuid] = g
	return Reserved{Pods: t.Pods, Outdated: t.Outdated, gpus: gpus}
}

// OfDriver returns what is taken with all of the GPU with the UUID, which another DRA driver
// grants to pods. Those that have it are named among the GPU's pods.
func (t Reserved) OfDriver(uuid, driver string, pods []string) Reserved {
	gpus := maps.Clone(t.gpus)
	if gpus == nil {
		gpus = map[string]GPU{}
	}
	g := gpus[uuid]
	g.Whole, g.Driver = true, driver
	g.Pods = slices.Concat(g.Pods, pods)
	gpus[uuid] = g
	return Reserved{Pods: t.Pods, Outdated: t.Outdated, gpus: gpus}
}
