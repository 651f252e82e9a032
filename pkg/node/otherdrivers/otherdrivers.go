// SPDX-License-Identifier: Apache-2.0

// Package otherdrivers knows which of a node's GPUs other DRA drivers have: what they publish of
// the node, and what the kubelet says that containers were given of it. Each driver grants what
// it publishes, and no scheduler counts a GPU once that two drivers publish. It is pure.
package otherdrivers

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Device is a device of another driver, as allocations and the kubelet name it.
type Device struct{ Driver, Pool, Name string }

// Published is a device of another driver that may be a GPU, or a part of one.
type Published struct {
	Device
	// UUIDs are those that it names, which may be of anything, and PCIBusID its PCI address.
	UUIDs    []string
	PCIBusID string
}

// Read returns what a ResourceSlice of another driver has of the node that may be GPUs.
func Read(slice *resourceapi.ResourceSlice, node string) []Published {
	if slice.Spec.Driver == v1alpha1.DriverName || ptr.Deref(slice.Spec.NodeName, "") != node {
		return nil
	}
	var out []Published
	for _, d := range slice.Spec.Devices {
		p := Published{Device: Device{slice.Spec.Driver, slice.Spec.Pool.Name, d.Name}}
		for name, attribute := range d.Attributes {
			value := ptr.Deref(attribute.StringValue, "")
			switch {
			case name == deviceattribute.StandardDeviceAttributePCIBusID:
				p.PCIBusID = value
			case strings.HasSuffix(strings.ToLower(string(name)), "uuid"):
				// Also the parent's of a part.
				p.UUIDs = append(p.UUIDs, value)
			}
		}
		if len(p.UUIDs) > 0 || p.PCIBusID != "" {
			slices.Sort(p.UUIDs)
			out = append(out, p)
		}
	}
	return out
}

// OnGPUs finds the devices that are GPUs of the machine, or parts of them, each with the UUID of its GPU.
func OnGPUs(published []Published, m *gpu.Machine) map[Device]string {
	gpus, out := m.All(), map[Device]string{}
	for _, p := range published {
		for _, g := range gpus {
			if slices.Contains(p.UUIDs, g.UUID) || p.PCIBusID != "" && strings.EqualFold(p.PCIBusID, g.PCIBusID) {
				out[p.Device] = g.UUID
			}
		}
	}
	return out
}

// Held is what the kubelet says of the devices of other drivers: the pods that have them, as
// namespace/name.
type Held struct {
	Pods map[Device][]string
	// Err says why that is not known, nil if it is.
	Err error
}

// GPU is a GPU that another driver has.
type GPU struct {
	// Driver is that driver; one of them, where several have it.
	Driver string
	// Pods have it, as far as the kubelet says.
	Pods []string
}

// Having returns the machine's GPUs, by UUID, that other drivers have. published are those that they publish
// now, kept those of which it is known from before: the kubelet removes the ResourceSlices of a
// driver that is away, while pods go on. What is kept without a UUID may be on any GPU. owner is the
// driver that the GPUs are for, as the administrator says, if he does: those that are for this one are the others'
// only while somebody has them there, or nobody knows.
func Having(m *gpu.Machine, published, kept map[Device]string, held Held, owner string) map[string]GPU {
	out := map[string]GPU{}
	for _, d := range slices.SortedFunc(maps.Keys(all(published, kept)), compare) {
		pods := held.Pods[d]
		uuid, isPublished := published[d]
		if !isPublished {
			uuid = kept[d]
		}
		if len(pods) == 0 && held.Err == nil && (!isPublished || owner == v1alpha1.DriverName) {
			continue
		}
		on := []string{uuid}
		if uuid == "" {
			on = uuidsOf(m)
		}
		for _, uuid := range on {
			has := out[uuid]
			has.Driver = cmp.Or(has.Driver, d.Driver)
			has.Pods = append(has.Pods, pods...)
			slices.Sort(has.Pods)
			has.Pods = slices.Compact(has.Pods)
			out[uuid] = has
		}
	}
	return out
}

func uuidsOf(m *gpu.Machine) []string {
	var uuids []string
	for _, g := range m.All() {
		uuids = append(uuids, g.UUID)
	}
	return uuids
}

// nvidia is a driver all of whose devices are GPUs, or parts of them, whether it publishes them or not.
const nvidia = "gpu.nvidia.com"

// WithUnplaced adds, to what is kept, the devices of NVIDIA's driver that pods have and that are neither kept nor
// published: it was gone before this driver came. Nobody tells any more which GPUs they are, so they have no UUIDs.
func WithUnplaced(published []Published, kept map[Device]string, held Held) map[Device]string {
	out := all(nil, kept)
	for d := range held.Pods {
		isPublished := slices.ContainsFunc(published, func(p Published) bool { return p.Device == d })
		if _, isKept := kept[d]; d.Driver == nvidia && !isKept && !isPublished {
			out[d] = ""
		}
	}
	return out
}

// Keep returns what has to be kept of them: all but what is neither published nor held.
func Keep(published, kept map[Device]string, held Held) map[Device]string {
	out := all(published, kept)
	maps.DeleteFunc(out, func(d Device, _ string) bool {
		_, isPublished := published[d]
		return !isPublished && held.Err == nil && len(held.Pods[d]) == 0
	})
	return out
}

func all(published, kept map[Device]string) map[Device]string {
	out := maps.Clone(kept)
	if out == nil {
		out = map[Device]string{}
	}
	maps.Copy(out, published)
	return out
}

func compare(a, b Device) int {
	return strings.Compare(a.Driver+"\x00"+a.Pool+"\x00"+a.Name, b.Driver+"\x00"+b.Pool+"\x00"+b.Name)
}
