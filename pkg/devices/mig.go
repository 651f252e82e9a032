// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// MIGOptions says how the instances of GPUs in MIG mode are served.
type MIGOptions struct {
	// Isolation and Level are their attributes "isolation" and "isolationLevel".
	Isolation, Level string
	// Gone are the instances that claims hold and that are not there any more. The scheduler
	// counts what is published alone, so they stay, closed, as long as their GPUs are there.
	Gone []GoneInstance
	// Made are the instances that this driver makes, or has made, for claims, by the UUID of their GPU and the name
	// of their device. The others that there are somebody else has made.
	Made map[string]map[string]bool
	// Held are places of instances that were made for claims which are gone, and could not be destroyed yet, by the
	// UUID of their GPU. Whatever overlaps them, or needs their engines, is closed by the taint TaintHeld.
	Held map[string][]gpu.Place
}

// GoneInstance is an instance of the GPU with the index that is not there any more, or another one is in
// its place.
type GoneInstance struct {
	gpu.Instance
	Index int
	Taint resourceapi.DeviceTaint
}

// profileSuffix is how the parts of a profile's name are written where only letters, digits
// and "-" may stand. GPUs have both 1g.24gb+me and 1g.24gb-me, without media engines, in the same places.
var profileSuffix = strings.NewReplacer(".", "-", "+", "-", "-", "-no-")

// InstanceName is the name of the device of a GPU instance: "gpu-1-mig-1g-10gb-me-6" for one of the
// profile 1g.10gb+me that begins at memory slice 6 of GPU 1. So another instance of the same profile in
// the same place has the same name; the UUID tells them apart.
func InstanceName(index int, profile string, start int) string {
	return fmt.Sprintf("gpu-%d-mig-%s-%d", index, profileSuffix.Replace(profile), start)
}

// InstanceNamed is the instance of the GPU whose device has the name.
func InstanceNamed(p gpu.Partitioned, name string) (gpu.Instance, bool) {
	at := slices.IndexFunc(p.Instances, func(i gpu.Instance) bool {
		return InstanceName(p.Index, i.Profile,
			i.Start) == name
	})
	if at < 0 {
		return gpu.Instance{}, false
	}
	return p.Instances[at], true
}

// PlacementNamed is the instance that the GPU can be cut into and whose device has the name.
func PlacementNamed(p gpu.Partitioned, name string) (gpu.Instance, bool) {
	for _, profile := range p.Profiles {
		for _, start := range profile.Starts {
			if i := profile.At(start); InstanceName(p.Index, i.Profile, start) == name {
				return i, true
			}
		}
	}
	return gpu.Instance{}, false
}

var instanceName = regexp.MustCompile(`^gpu-(0|[1-9][0-9]*)-mig-[a-z0-9]+(-[a-z0-9]+)+-(0|[1-9][0-9]*)$`)

// parseInstanceName is the reverse of InstanceName as far as there is one: the index of the GPU.
func parseInstanceName(name string) (index int, ok bool) {
	parts := instanceName.FindStringSubmatch(name)
	if parts == nil {
		return 0, false
	}
	index, err := strconv.Atoi(parts[1])
	return index, err == nil
}

// withInstances is the pool of GPUs' devices and counters, with those of the machine's instances after them. Where GPUs
// are counted, their monitors come last: whatever else a claim asks for, the scheduler finds it before.
func withInstances(m *gpu.Machine, o Options, devices []resourceapi.Device, counters []resourceapi.CounterSet,
) resourceslice.DriverResources {
	var last []resourceapi.Device
	if len(counters) > 0 {
		last = monitors(m, o)
	}
	if len(m.Partitioned)+len(o.MIG.Gone) > 0 {
		devices = append(devices, instances(m, o)...)
		counters = append(counters, instanceCounters(m, o.MIG)...)
	}
	closeConflicts(devices, counters, o)
	return pool(o.Pool, append(devices, last...), counters)
}

// instances are the devices of the machine's instances, in the order of their GPUs and places, and
// after them those that are gone and held. They know nothing of the mode that the node's other GPUs
// are in, nor of its changes: see mode.Mode.Serves.
func instances(m *gpu.Machine, o Options) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, p := range m.Partitioned {
		for _, i := range p.Instances {
			if i.LeftOut == "" && !o.MIG.made(p, i) {
				devices = append(devices, instance(m, p, i, o))
			}
		}
		devices = append(devices, placements(m, p, o)...)
	}
	for _, gone := range o.MIG.Gone {
		// It has all attributes that others have: a selector that names one which a device lacks keeps
		// pods from every node.
		g, there := gpuOf(m, gone.Index)
		if !there {
			continue
		}
		name := InstanceName(gone.Index, gone.Profile, gone.Start)
		at := slices.IndexFunc(devices, func(d resourceapi.Device) bool { return d.Name == name })
		if at < 0 {
			at = len(devices)
			devices = append(devices, instance(m, gpu.Partitioned{GPU: g}, gone.Instance, o))
		}
		// That its GPU is unhealthy says less.
		others := slices.DeleteFunc(devices[at].Taints, func(t resourceapi.DeviceTaint) bool {
			return t.Key == gone.Taint.Key
		})
		devices[at].Taints = append(others, gone.Taint)
	}
	return devices
}

// gpuOf is the GPU with the index, in MIG mode or not.
func gpuOf(m *gpu.Machine, index int) (gpu.GPU, bool) {
	for _, p := range m.Partitioned {
		if p.Index == index {
			return p.GPU, true
		}
	}
	at := slices.IndexFunc(m.GPUs, func(g gpu.GPU) bool { return g.Index == index })
	if at < 0 {
		return gpu.GPU{}, false
	}
	return m.GPUs[at], true
}

// made reports whether this driver makes, or has made, the instance.
func (o MIGOptions) made(p gpu.Partitioned, i gpu.Instance) bool {
	return o.Made[p.UUID][InstanceName(p.Index, i.Profile, i.Start)]
}

// ofOthers are the instances of a GPU that this driver neither makes nor has made.
func (o MIGOptions) ofOthers(p gpu.Partitioned) []gpu.Instance {
	return slices.DeleteFunc(slices.Clone(p.Instances), func(i gpu.Instance) bool { return o.made(p, i) })
}

// heldOf are the instances in places that are Held, as far as the GPU's profiles are known.
func (o MIGOptions) heldOf(p gpu.Partitioned) []gpu.Instance {
	var held []gpu.Instance
	for _, place := range o.Held[p.UUID] {
		for _, profile := range p.Profiles {
			if profile.Kind.ProfileID == place.ProfileID {
				held = append(held, profile.At(place.Start))
			}
		}
	}
	return held
}

func instance(m *gpu.Machine, p gpu.Partitioned, i gpu.Instance, o Options) resourceapi.Device {
	a := gpuAttributes(m, p.GPU)
	a.setString(v1alpha1.AttrMode, string(mode.MIG))
	a.setString(v1alpha1.AttrIsolation, o.MIG.Isolation)
	a.setString(v1alpha1.AttrIsolationLevel, o.MIG.Level)
	a.setString(v1alpha1.AttrUUID, i.UUID)
	a.setString(v1alpha1.AttrParentUUID, p.UUID)
	a.setString(v1alpha1.AttrProfile, i.Profile)
	a.setInt(v1alpha1.AttrProfileID, int64(i.ProfileID))
	a.setInt(v1alpha1.AttrPlacementStart, int64(i.Start))
	a.setInt(v1alpha1.AttrPlacementSize, int64(i.Size))
	a.setInt(v1alpha1.AttrMemoryMiB, i.MemoryMiB)
	d := resourceapi.Device{
		Name:       InstanceName(p.Index, i.Profile, i.Start),
		Attributes: a,
		Capacity:   instanceCapacity(i),
		Taints:     withTaints(slices.Clone(o.GPUTaints[p.UUID]), o.GPUTaints[i.UUID]),
	}
	if o.NVIDIA {
		nvidiaNames(&d, mode.MIG, i.MemoryMiB)
	}
	return d
}

// instanceCapacity is all that a claim for an instance gets. The names are those of NVIDIA's driver.
func instanceCapacity(i gpu.Instance) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	capacity := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		v1alpha1.CapMemory: {Value: *resource.NewQuantity(i.MemoryMiB<<20, resource.BinarySI)},
	}
	for name, n := range map[resourceapi.QualifiedName]int{
		v1alpha1.CapMultiprocessors: i.SMCount, v1alpha1.CapCopyEngines: i.CopyEngines, v1alpha1.CapDecoders: i.Decoders,
		v1alpha1.CapEncoders: i.Encoders, v1alpha1.CapJPEGEngines: i.JPEGs, v1alpha1.CapOFAEngines: i.OFAs,
	} {
		capacity[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
	}
	return capacity
}
