// SPDX-License-Identifier: Apache-2.0

package otherdrivers

import (
	"errors"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

var machine = &gpu.Machine{GPUs: []gpu.GPU{
	{Index: 0, UUID: "GPU-0", PCIBusID: "0000:3b:00.0"}, {Index: 1, UUID: "GPU-1", PCIBusID: "0000:5e:00.0"},
}, Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 2, UUID: "GPU-2", PCIBusID: "0000:af:00.0"}}}}

// device is a device with the string attributes, alternately a name and a value.
func device(name string, attributes ...string) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	for i := 0; i < len(attributes); i += 2 {
		d.Attributes[resourceapi.QualifiedName(attributes[i])] = resourceapi.DeviceAttribute{StringValue: &attributes[i+1]}
	}
	return d
}

func slice(driver, node string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: ptr.To(node),
		Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}, Devices: devices}}
}

func TestGPUsInSlicesOfOtherDrivers(t *testing.T) {
	for name, tc := range map[string]struct {
		slice *resourceapi.ResourceSlice
		want  map[Device]string
	}{
		"by UUID": {slice(nvidia, "n1", device("gpu-1", "uuid", "GPU-1")),
			map[Device]string{{nvidia, "n1", "gpu-1"}: "GPU-1"}},
		"by UUID in a domain": {slice("hami", "n1", device("h", "hami.io/uuid", "GPU-1")),
			map[Device]string{{"hami", "n1", "h"}: "GPU-1"}},
		"a part, by the UUID of the whole": {slice(nvidia, "n1", device("mig-1g", "uuid", "MIG-7", "parentUUID", "GPU-0")),
			map[Device]string{{nvidia, "n1", "mig-1g"}: "GPU-0"}},
		"a part of a GPU in MIG mode": {
			slice(nvidia, "n1", device("mig-1g", "uuid", "MIG-8", "parentUUID", "GPU-2")),
			map[Device]string{{nvidia, "n1", "mig-1g"}: "GPU-2"}},
		"by PCI address": {slice("vfio", "n1", device("v", "resource.kubernetes.io/pciBusID", "0000:5E:00.0")),
			map[Device]string{{"vfio", "n1", "v"}: "GPU-1"}},
		"another device on the bus": {
			slice("nic", "n1", device("eth1", "resource.kubernetes.io/pciBusID", "0000:60:00.0")), nil},
		"a device without either": {slice(nvidia, "n1", device("channel-0", "type", "channel")), nil},
		"one that names a GPU":    {slice("nic", "n1", device("eth1", "nearest", "GPU-1")), nil},
		"of another node":         {slice(nvidia, "n2", device("gpu-1", "uuid", "GPU-1")), nil},
		"this driver's own":       {slice(v1alpha1.DriverName, "n1", device("gpu-1", "uuid", "GPU-1")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			want := tc.want
			if want == nil {
				want = map[Device]string{}
			}
			expect.Equal(t, want, OnGPUs(Read(tc.slice, "n1"), machine), "devices on GPUs")
		})
	}
}

func TestWhoHasAGPU(t *testing.T) {
	d := Device{nvidia, "n1", "gpu-0"}
	on := map[Device]string{d: "GPU-0"}
	held := Held{Pods: map[Device][]string{d: {"team/p"}}}
	unknown := Held{Err: errors.New("the kubelet does not answer")}
	theirs := map[string]GPU{"GPU-0": {Driver: nvidia}}
	with := map[string]GPU{"GPU-0": {Driver: nvidia, Pods: []string{"team/p"}}}
	none := map[string]GPU{}
	somewhere := map[Device]string{d: ""}
	onEach := func(pods ...string) map[string]GPU {
		g := GPU{Driver: nvidia, Pods: pods}
		return map[string]GPU{"GPU-0": g, "GPU-1": g, "GPU-2": g}
	}
	for name, tc := range map[string]struct {
		published, kept map[Device]string
		held            Held
		owner           string
		want            map[string]GPU
		keep            map[Device]string
	}{
		"nobody publishes it":                     {nil, nil, Held{}, "", none, nil},
		"published":                               {on, nil, Held{}, "", theirs, on},
		"published and held":                      {on, on, held, "", with, on},
		"published, and for this driver":          {on, on, Held{}, v1alpha1.DriverName, none, on},
		"for this driver, and held":               {on, on, held, v1alpha1.DriverName, with, on},
		"for this driver, and nobody knows":       {on, on, unknown, v1alpha1.DriverName, theirs, on},
		"for the other driver":                    {on, on, Held{}, nvidia, theirs, on},
		"published no more, and held":             {nil, on, held, "", with, on},
		"published no more, and nobody knows":     {nil, on, unknown, "", theirs, on},
		"published no more, and nobody has it":    {nil, on, Held{}, "", none, nil},
		"a pod has what was never seen published": {nil, nil, held, "", none, nil},
		"held, on whichever GPU":                  {nil, somewhere, held, "", onEach("team/p"), somewhere},
		"the same, and for this driver":           {nil, somewhere, held, v1alpha1.DriverName, onEach("team/p"), somewhere},
		"the same, and nobody knows":              {nil, somewhere, unknown, "", onEach(), somewhere},
		"the same, and published again":           {on, somewhere, held, "", with, on},
		"the same, and nobody has it":             {nil, somewhere, Held{}, "", none, nil},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, tc.want, Having(machine, tc.published, tc.kept, tc.held, tc.owner), "GPUs of other drivers")
			if got := Keep(tc.published, tc.kept, tc.held); len(got) != len(tc.keep) || got[d] != tc.keep[d] {
				t.Errorf("kept: %v, want %v", got, tc.keep)
			}
		})
	}
}

// Only of NVIDIA's driver is it known that what pods have of it is a GPU.
func TestDevicesThatNobodyPlaces(t *testing.T) {
	d := Device{nvidia, "n1", "gpu-0"}
	held := Held{Pods: map[Device][]string{d: {"team/p"}, {"nic", "n1", "eth1"}: {"team/p"},
		{"compute-domain.nvidia.com", "n1", "channel-0"}: {"team/p"}}}
	for name, tc := range map[string]struct {
		published []Published
		kept      map[Device]string
		held      Held
		want      map[Device]string
	}{
		"held":                 {nil, nil, held, map[Device]string{d: ""}},
		"held and published":   {[]Published{{Device: d, UUIDs: []string{"GPU-9"}}}, nil, held, map[Device]string{}},
		"held and kept":        {nil, map[Device]string{d: "GPU-0"}, held, map[Device]string{d: "GPU-0"}},
		"held by nobody":       {nil, nil, Held{}, map[Device]string{}},
		"nobody knows of whom": {nil, nil, Held{Err: errors.New("the kubelet does not answer")}, map[Device]string{}},
	} {
		expect.Equal(t, tc.want, WithUnplaced(tc.published, tc.kept, tc.held), "%s", name)
	}
}
