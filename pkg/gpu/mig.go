// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// MIGMode is a GPU's MIG mode.
type MIGMode struct {
	// Capable says that the GPU has a MIG mode.
	Capable bool
	// Enabled says that the GPU is in MIG mode now: nothing of it can be used but its instances.
	Enabled bool
	// Pending is what Enabled will be once the GPU was reset. It is Enabled unless somebody has
	// switched the mode and the GPU waits for that reset.
	Pending bool
}

// Partitioned is a GPU in MIG mode. It is never in Machine.GPUs: it cannot be handed out, only
// its instances can.
type Partitioned struct {
	GPU
	// Instances are its GPU instances, those that cannot be handed out among them, ordered by
	// where they begin; none if it is in MIG mode and not cut.
	Instances []Instance
	// Profiles are what it can be cut into, in the driver's order. They are read where instances are made on
	// demand, and empty otherwise.
	Profiles []Profile
}

// Profile is a kind of instances that a GPU in MIG mode can be cut into.
type Profile struct {
	// Kind is what each instance of it is. It has no ids, no UUID and no place, but the size of one.
	Kind Instance
	// Starts are the memory slices at which one can begin, from the first on. Count is how many there can be
	// at the same time.
	Starts []int
	Count  int
}

// At is an instance of the profile that nobody has made yet.
func (p Profile) At(start int) Instance {
	i := p.Kind
	i.Start = start
	return i
}

// Place is where an instance lies, and of which profile it is.
type Place struct {
	ProfileID int `json:"profileID"`
	Start     int `json:"start"`
	Size      int `json:"size"`
}

// PlaceOf is the instance's place.
func (i Instance) PlaceOf() Place { return Place{ProfileID: i.ProfileID, Start: i.Start, Size: i.Size} }

// Overlaps reports whether two places have memory slices in common.
func (p Place) Overlaps(other Place) bool {
	return p.Start < other.Start+other.Size && other.Start < p.Start+p.Size
}

var (
	// ErrPlaceTaken is that an instance cannot be made, since another one is in its place or has what it takes
	// (nvmlDeviceCreateGpuInstanceWithPlacement: INSUFFICIENT_RESOURCES).
	ErrPlaceTaken = errors.New("another MIG instance is in the way")
	// ErrInstanceInUse is that an instance cannot be destroyed, since a program has it open.
	ErrInstanceInUse = errors.New("a program still has the MIG instance open")
)

// InstanceID says which part of a GPU in MIG mode: the ids that the driver gives a GPU instance and a
// compute instance in it. Both are used again: another instance in the same place may have the same ones.
type InstanceID struct {
	GI, CI int
}

func (id InstanceID) String() string {
	return fmt.Sprintf("GPU instance %d, compute instance %d", id.GI, id.CI)
}

// Instance is a GPU instance of a GPU in MIG mode, together with the one compute instance that it has
// if it can be handed out.
type Instance struct {
	// GI is the id of the GPU instance, CI that of its compute instance. CI is NoCI if LeftOut
	// says that there is none, or not only one.
	InstanceID
	// UUID is the MIG device's, "MIG-…": a new one each time that the instance is made. It is
	// empty where CI is NoCI.
	UUID string
	// ProfileID is the number that "nvidia-smi mig -lgip" shows, Profile the driver's own name of the
	// profile, as "1g.10gb+me". Either names different amounts on different models.
	ProfileID int
	Profile   string
	// Start and Size are its place in the GPU's memory slices.
	Start, Size int
	// MemoryMiB is what its MIG device has, rounded down. Two instances of one profile may differ.
	MemoryMiB int64
	// SMCount is the number of its multiprocessors, the others are those of its engines. All are
	// those of the profile.
	SMCount, CopyEngines, Decoders, Encoders, JPEGs, OFAs int
	// Graphics says that its profile has graphics ("+gfx").
	Graphics bool
	// LeftOut is why no container can be given it; empty if one can: then it has exactly one
	// compute instance, as large as itself.
	LeftOut string
	// Recut says that it is left out for what this driver never makes: several compute instances, or a smaller one.
	Recut bool
}

// NoCI is the CI of an instance that does not have exactly one.
const NoCI = -1

// Place names an instance's place, as it is told to users: "3g.40gb at slices 4-7".
func (i Instance) Place() string {
	if i.Size == 1 {
		return fmt.Sprintf("%s at slice %d", i.Profile, i.Start)
	}
	return fmt.Sprintf("%s at slices %d-%d", i.Profile, i.Start, i.Start+i.Size-1)
}

// All are all GPUs that answer, those in MIG mode too, ordered by Index.
func (m *Machine) All() []GPU {
	all := slices.Clone(m.GPUs)
	for _, p := range m.Partitioned {
		all = append(all, p.GPU)
	}
	slices.SortFunc(all, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// Unpartitioned returns the GPUs that are not in MIG mode. It includes those that are left out, of which at most the
// index and the UUID are known.
func (m *Machine) Unpartitioned() []GPU {
	gpus := slices.Clone(m.GPUs)
	for _, f := range m.Faults {
		gpus = append(gpus, GPU{Index: f.Index, UUID: f.UUID})
	}
	return gpus
}

// Instance finds an instance by its UUID, and the GPU that it is part of.
func (m *Machine) Instance(uuid string) (Partitioned, Instance, bool) {
	if uuid == "" {
		return Partitioned{}, Instance{}, false
	}
	for _, p := range m.Partitioned {
		if at := slices.IndexFunc(p.Instances, func(i Instance) bool { return i.UUID == uuid }); at >= 0 {
			return p, p.Instances[at], true
		}
	}
	return Partitioned{}, Instance{}, false
}

// SortInstances orders them as Partitioned.Instances are.
func SortInstances(instances []Instance) {
	slices.SortFunc(instances, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.GI, b.GI))
	})
}
