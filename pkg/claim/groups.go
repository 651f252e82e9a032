// SPDX-License-Identifier: Apache-2.0

package claim

import "slices"

// SameResult reports whether both grants are of the same allocation result.
func (g Grant) SameResult(other Grant) bool {
	return g.Request == other.Request && g.Pool == other.Pool && g.Device == other.Device && g.ShareID == other.ShareID
}

// SameContainer reports whether both grants of a claim are for the same container and mean
// the same there: they are of one request, or their requests' configuration names the
// same container, and they are of one mode, and both or neither an administrator's.
func (g Grant) SameContainer(other Grant) bool {
	if g.Mode != other.Mode || g.Admin != other.Admin {
		return false
	}
	if g.Config.Container != nil && other.Config.Container != nil {
		return *g.Config.Container == *other.Config.Container
	}
	return g.Request == other.Request
}

// Results groups the grants of a claim by allocation result, in their order.
func Results(grants []Grant) [][]Grant {
	var results [][]Grant
	for start, end := 0, 0; start < len(grants); start = end {
		for end = start + 1; end < len(grants) && grants[end].SameResult(grants[start]); end++ {
		}
		results = append(results, grants[start:end])
	}
	return results
}

// ContainerGroups groups the grants of a claim by the container that they are for (see
// SameContainer), in their order.
func ContainerGroups(grants []Grant) [][]Grant {
	var groups [][]Grant
	for _, g := range grants {
		i := slices.IndexFunc(groups, func(group []Grant) bool { return group[0].SameContainer(g) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], g)
	}
	return groups
}

// PerGPU adds up the grants of a container group: one for each GPU, in the order of its
// first, with the memory and compute of all that are on that GPU.
func PerGPU(grants []Grant) []Grant {
	var out []Grant
	at := map[string]int{}
	for _, g := range grants {
		i, seen := at[g.GPU.UUID]
		if !seen {
			at[g.GPU.UUID] = len(out)
			out = append(out, g)
			continue
		}
		out[i].Units += g.Units
		out[i].CoresPercent += g.CoresPercent
	}
	return out
}
