// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
)

// Missing is a running container whose limit was not that of its share.
type Missing struct {
	Entry
	UUID string
	// Found is how its limit differed.
	Found error
	// Failed is why the limit could not be set again; nil where it was.
	Failed error
}

// Check compares the limits of a GPU's running containers with their shares, and sets those
// that differ: a driver that is reloaded has lost them (§1), and somebody may have changed
// them. It removes the entries of claims that are not prepared any more. Of kind Misc it lifts
// their pods' limits, which the driver's table would keep (§2). prepared is asked while no container
// can start on the GPU: it has to know also the claims that were prepared a moment ago.
func (h Host) Check(g GPU, c Target, prepared func(claim types.UID) (bool, error)) (missing []Missing, err error) {
	err = h.locked(c, func(entries []Entry, keep func([]Entry) error) error {
		var kept []Entry
		for _, e := range entries {
			still, err := prepared(e.Claim)
			if err != nil {
				return err
			}
			if still {
				kept = append(kept, e)
			}
		}
		limits := wanted(kept, c)
		for _, e := range entries {
			if _, still := limits[e.PodDir]; e.WholePod && !still {
				_ = g.Set(h.dir(e.PodDir), memlimit.NoLimit) // The pod has ended, or is about to.
			}
		}
		for _, e := range kept {
			if !h.exists(e.Dir) {
				continue
			}
			found := h.verify(g, e, limits)
			// It may have ended meanwhile.
			if found == nil || !h.exists(e.Dir) {
				continue
			}
			held := h.heldTighter(g, e, limits)
			var failed error
			kept, failed = h.apply(g, c, kept, e)
			limits = wanted(kept, c)
			if failed == nil && held {
				continue
			}
			missing = append(missing, Missing{Entry: e, UUID: c.UUID, Found: found, Failed: failed})
		}
		return keep(kept)
	})
	return missing, err
}

// heldTighter says that an entry's control groups have their limits, but that the pod's is lower: so a hook leaves it
// that is ended before it raises it, and nobody was without a limit.
func (h Host) heldTighter(g GPU, e Entry, limits map[string]uint64) bool {
	got, err := g.Get(h.dir(e.PodDir))
	if pod, ofPod := limits[e.PodDir]; err != nil || !ofPod || got.Hard >= pod {
		return false
	}
	tighter := maps.Clone(limits)
	tighter[e.PodDir] = got.Hard
	return h.verify(g, e, tighter) == nil
}

// Used is what a container, or all of a pod, is charged with of a GPU.
type Used struct {
	Pod types.UID
	// Container is the runtime's ID; empty where the pod's containers are counted together.
	Container string
	MiB       int64
}

// Used is what the driver counts for the GPU's running containers: of their own control
// groups or, where the pod has the limit, of that. A container of which it cannot be read
// is left out.
func (h Host) Used(g GPU, c Target) (used []Used, err error) {
	err = h.locked(c, func(entries []Entry, keep func([]Entry) error) error {
		used = h.usedBy(g, entries)
		return keep(entries)
	})
	return used, err
}

func (h Host) usedBy(g GPU, entries []Entry) []Used {
	var used []Used
	for _, e := range entries {
		if !h.exists(e.Dir) {
			continue
		}
		u, group := Used{Pod: e.Pod, Container: e.Container}, e.Dir
		if e.WholePod {
			group = e.PodDir
			if slices.ContainsFunc(entries, func(o Entry) bool {
				return o.PodDir == e.PodDir && o.WholePod && o.Container != e.Container && h.exists(o.Dir)
			}) {
				u.Container = ""
			}
		}
		limit, err := g.Get(h.dir(group))
		if err != nil {
			continue
		}
		u.MiB = int64(limit.Used / mib)
		if !slices.Contains(used, u) {
			used = append(used, u)
		}
	}
	return used
}
