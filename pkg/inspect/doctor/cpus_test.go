// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/cpu"
)

// A node whose CPUs no pod can have near its GPUs is named, with what would help; one without GPUs is not.
func TestCPUsThatAreNearNoGPU(t *testing.T) {
	for name, test := range map[string]struct {
		node   string
		shape  cpu.Shape
		layout cpu.Layout
		text   string
		do     string
	}{
		"main":              {"n1", cpu.Main, cpu.ByNUMANode, "", ""},
		"sockets":           {"n1", cpu.Release, cpu.BySocket, "", ""},
		"release 0.2.0":     {"n1", cpu.Release, cpu.ByNUMANode, "no attribute resource.kubernetes.io/numaNode", "08-13"},
		"the machine":       {"n1", cpu.Main, cpu.ByMachine, "all CPUs are one device", "groupBy: numanode"},
		"each CPU":          {"n1", cpu.Release, cpu.Individual, "each CPU is a device", "mode grouped"},
		"a node of no GPUs": {"n9", cpu.Release, cpu.ByNUMANode, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			s.CPUs = []*resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{Driver: cpu.DriverName,
				NodeName: &test.node, Devices: cpu.Devices(test.shape, test.layout, map[int64]int64{0: 2, 1: 2})}}}
			found := foundBy("cpus", s)
			switch {
			case test.text == "" && len(found) > 0:
				t.Errorf("found %+v", found)
			case test.text == "":
			case len(found) != 1 || found[0].Level != doctor.Warning || found[0].Object != "node/n1" ||
				!strings.Contains(found[0].Text, test.text) || !strings.Contains(found[0].Do, test.do):
				t.Errorf("found %+v, want one of node n1 with %q and %q", found, test.text, test.do)
			}
		})
	}
}
