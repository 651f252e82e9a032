// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Nodes are of one variety whatever the order of their GPUs, and of another where anything differs that a selector may
// ask for.
func TestVarieties(t *testing.T) {
	offered := func(change ...func(*devices.Options)) [][]resourceapi.Device {
		o := devices.Options{Pool: "p", Mode: mode.Share, Slots: 20}
		for _, c := range change {
			c(&o)
		}
		return [][]resourceapi.Device{devices.Build(machineOf8(), o).Pools["p"].Slices[0].Devices}
	}
	first, known := varietyOf(nil, offered())
	if known {
		t.Fatal("the first one is known")
	}
	for name, test := range map[string]struct {
		change func(*devices.Options)
		same   bool
	}{
		"the same":      {func(*devices.Options) {}, true},
		"another order": {func(o *devices.Options) { o.Order = []int{7, 6, 5, 4, 3, 2, 1, 0} }, true},
		"another mode":  {func(o *devices.Options) { o.Mode = mode.Exclusive }, false},
		"fewer shares":  {func(o *devices.Options) { o.Slots = 10 }, false},
	} {
		if v, known := varietyOf([]*variety{first}, offered(test.change)); known != test.same || (v == first) != test.same {
			t.Errorf("%s: known %t, want %t", name, known, test.same)
		}
	}
	one := offered()
	if v, known := varietyOf([]*variety{{offered: one}}, slices.Clone(one)); !known || v.devices != nil {
		t.Error("devices that are shared are compared")
	}
}

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
