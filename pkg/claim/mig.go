// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Instance is what identifies a MIG instance. The ids are used again, the UUID is not.
type Instance struct {
	ParentUUID string `json:"parentUUID"`
	Profile    string `json:"profile"`
	ProfileID  int    `json:"profileID"`
	GI         int    `json:"gi"`
	CI         int    `json:"ci"`
	// Start and Size are its place in the GPU's memory slices.
	Start int `json:"start"`
	Size  int `json:"size"`
	// Made says that it is made for the claim, and destroyed after it. Until it is there GI and CI are gpu.NoCI,
	// and the GPU has no UUID.
	Made bool `json:"made,omitempty"`
}

// PlaceOf is where it lies.
func (i Instance) PlaceOf() gpu.Place {
	return gpu.Place{ProfileID: i.ProfileID, Start: i.Start, Size: i.Size}
}

// Unmade reports whether the GPU is a MIG instance that is still to be made.
func (c GPU) Unmade() bool { return c.MIG != nil && c.MIG.Made && c.UUID == "" }

// Key identifies the GPU among those of the node, also while it has no UUID yet.
func (c GPU) Key() string {
	if c.Unmade() {
		return fmt.Sprintf("%s %s at %d", c.MIG.ParentUUID, c.MIG.Profile, c.MIG.Start)
	}
	return c.UUID
}

// String names what was granted for people: "GPU 1", or "GPU 1's 3g.40gb at slices 4-7".
func (c GPU) String() string {
	if c.MIG == nil {
		return fmt.Sprintf("GPU %d", c.Index)
	}
	i := gpu.Instance{Profile: c.MIG.Profile, Start: c.MIG.Start, Size: c.MIG.Size}
	return fmt.Sprintf("GPU %d's %s", c.Index, i.Place())
}

// Gone says why a MIG instance is not what it was when it was granted; empty if it is, for a GPU, and
// while its GPU cannot be read, which says nothing of its instances.
func (c GPU) Gone(m *gpu.Machine) string {
	if c.MIG == nil || c.Unmade() || slices.ContainsFunc(m.Faults, func(f gpu.Fault) bool { return f.Index == c.Index }) {
		return ""
	}
	_, i, there := m.Instance(c.UUID)
	switch {
	case there && i.LeftOut != "":
		return fmt.Sprintf("%s cannot be used any more: %s", c, i.LeftOut)
	case there:
		return ""
	default:
		return fmt.Sprintf("%s (%s) is not there any more: somebody cut the GPU again, or it was reset, which no instance "+
			"survives", c, c.UUID)
	}
}

// instanceOf is the instance of the GPU that has the device's profile and place now.
func instanceOf(machine *gpu.Machine, device string, index int) (GPU, error) {
	at := slices.IndexFunc(machine.Partitioned, func(p gpu.Partitioned) bool { return p.Index == index })
	if at < 0 {
		return GPU{}, fmt.Errorf("GPU %d is not in MIG mode any more, or cannot be read", index)
	}
	p := machine.Partitioned[at]
	i, there := devices.InstanceNamed(p, device)
	if !there {
		if i, can := devices.PlacementNamed(p, device); can {
			return GPU{Index: p.Index, Model: p.Model, MemoryMiB: i.MemoryMiB, MIG: &Instance{ParentUUID: p.UUID,
				Profile: i.Profile, ProfileID: i.ProfileID, GI: gpu.NoCI, CI: gpu.NoCI, Start: i.Start, Size: i.Size,
				Made: true}}, nil
		}
		return GPU{}, fmt.Errorf("GPU %d has no such MIG instance any more: somebody cut it again, or the node was started "+
			"again, which no instance survives", index)
	}
	if i.LeftOut != "" {
		return GPU{}, fmt.Errorf("GPU %d's MIG instance %s cannot be used: %s", index, i.Place(), i.LeftOut)
	}
	return GPU{Index: p.Index, UUID: i.UUID, Model: p.Model, MemoryMiB: i.MemoryMiB, MIG: &Instance{
		ParentUUID: p.UUID, Profile: i.Profile, ProfileID: i.ProfileID, GI: i.GI, CI: i.CI, Start: i.Start, Size: i.Size,
	}}, nil
}
