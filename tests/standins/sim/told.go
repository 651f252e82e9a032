// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ToldFile is the machine file in the form that the NVML library of the simulated node
// reads (tests/standins/nvmllib): all that it answers, already worked out.
//
// It has lines "key = value". The keys of a GPU's properties begin with "gpu.N.", where
// N is its position. A value "!N" is NVML's error N, and "!hang" a call that does not
// return. What a GPU has no line for it does not support. The property "every" stands
// for all of a GPU but its handle.
const ToldFile = "machine.nvml"

// told is the content of ToldFile.
func (s *Spec) told() []byte {
	var out bytes.Buffer
	line := func(key string, value any) { fmt.Fprintf(&out, "%s = %v\n", key, value) }
	driver := map[string]any{
		"init": 0, "version": s.Driver.Version, "nvml": "12." + s.Driver.Version,
		"cuda": cudaVersion(s.Driver.CUDA), "count": len(s.GPUs),
	}
	for name, ret := range s.Driver.Errors {
		driver[name] = answer(ret)
	}
	for _, key := range slices.Sorted(maps.Keys(driver)) {
		line(key, driver[key])
	}
	lanes := s.lanes()
	for i := range s.GPUs {
		properties := s.properties(i, lanes[i])
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			line(fmt.Sprintf("gpu.%d.%s", i, name), properties[name])
		}
		for _, p := range s.GPUs[i].State.Processes {
			line(fmt.Sprintf("gpu.%d.process", i), p.line(s.partOf(i, p)))
		}
		for _, l := range s.migLines(i) {
			line(fmt.Sprintf("gpu.%d.%s", i, l[0]), l[1])
		}
	}
	for _, e := range s.Events {
		part := "-1 -1"
		if len(e.Instance) == 2 {
			part = fmt.Sprintf("%d %d", e.Instance[0], e.Instance[1])
		}
		line("event", fmt.Sprintf("%d %d %x %d %s", e.Number, e.GPU, eventTypes[e.Type], e.Data, part))
	}
	return out.Bytes()
}

// answer is an error of NVML as ToldFile has it.
func answer(name string) string {
	if ret := returns[name]; ret != returnHang {
		return "!" + strconv.Itoa(int(ret))
	}
	return "!hang"
}

// properties are what a GPU answers, but for its processes.
func (s *Spec) properties(i int, lanes []int) map[string]any {
	c, model := s.GPUs[i], s.Models[s.GPUs[i].Model]
	architecture := architectures[model.Architecture]
	all := map[string]any{
		"handle": 0, "uuid": s.uuid(i), "minor": s.minor(i), "name": model.ProductName, "memory": model.MemoryMiB,
		"reserved": model.ReservedMiB, "pci": c.BusID, "pciDeviceID": model.PCIDeviceID, "brand": int(brands[model.Brand]),
		"architecture": int(architecture.code), "computeCapability": model.ComputeCapability, "cores": model.CUDACores,
		"topology": s.levels(i), "computeMode": c.State.ComputeMode, "setComputeMode": 0, "processes": 0,
		"utilization":   0,
		"ecc.corrected": c.State.Corrected, "ecc.uncorrected": c.State.Uncorrected,
		"events": fmt.Sprintf("0x%x", allEvents()),
		fmt.Sprintf("field.%d", fieldRecoveryAction): c.State.RecoveryAction,
	}
	for id, value := range c.State.Fields {
		all[fmt.Sprintf("field.%d", id)] = value
	}
	if model.MIG {
		s.addMIG(all, i)
	}
	if len(lanes) > 0 {
		all["nvlink"], all["nvlinkVersion"] = s.peers(lanes), int(architecture.nvlink)
	}
	if architecture.code >= nvml.DEVICE_ARCH_AMPERE {
		r := c.State.RemappedRows
		all["remappedRows"] = fmt.Sprintf("%d %d %d %d", r.Corrected, r.Uncorrected, number(r.Pending), number(r.Failed))
	}
	s.addMemoryLimits(all, c)
	for property, ret := range c.Fault.Errors {
		for _, key := range property.keys() {
			all[key] = answer(ret)
		}
	}
	switch {
	case c.Fault.Hangs:
		all["every"] = answer("HANG")
	case c.Fault.Lost:
		all["every"] = answer("GPU_IS_LOST")
	}
	return all
}

// keys are the lines of ToldFile that the property stands for.
func (p Property) keys() []string {
	switch p {
	case propertyECC:
		return []string{"ecc.corrected", "ecc.uncorrected"}
	case propertyRecoveryAction:
		return []string{fmt.Sprintf("field.%d", fieldRecoveryAction)}
	}
	return []string{string(p)}
}

func allEvents() (mask uint64) {
	for _, bit := range eventTypes {
		mask |= bit
	}
	return mask
}

// peers are what a GPU's lanes lead to.
func (s *Spec) peers(lanes []int) string {
	names := make([]string, 0, len(lanes))
	for _, peer := range lanes {
		if peer == toSwitch {
			names = append(names, "switch")
			continue
		}
		names = append(names, s.GPUs[peer].BusID)
	}
	return strings.Join(names, " ")
}

// levels are the PCIe levels between a GPU and all of the machine.
func (s *Spec) levels(i int) string {
	levels := make([]string, 0, len(s.GPUs))
	for j := range s.GPUs {
		level := nvml.TOPOLOGY_INTERNAL
		if j != i {
			level = commonAncestor(s.GPUs[i], s.GPUs[j])
		}
		levels = append(levels, strconv.Itoa(int(level)))
	}
	return strings.Join(levels, " ")
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}
