// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// firstWithMemoryLimits is the release of the driver since which it limits memory by control group, and has
// the functions for it.
const firstWithMemoryLimits = 615

var memoryLimitFunctions = []string{"nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"}

// How a driver counts the memory of control groups that it limits (tests/standins/nvmllib/src/memory.c).
const (
	// MemoryLimitsOff is a driver that was told not to.
	MemoryLimitsOff = "off"
	// MemoryLimitsDmem leaves it to the kernel's controller dmem.
	MemoryLimitsDmem = "dmem"
	// MemoryLimitsMisc is a table of the driver's own.
	MemoryLimitsMisc = "misc"
)

// MemoryLimitModes lists how a driver may count.
func MemoryLimitModes() []string {
	return []string{MemoryLimitsDmem, MemoryLimitsMisc, MemoryLimitsOff}
}

func (d Driver) limitsMemory() bool {
	major, _ := versionPair(d.Version)
	return major >= firstWithMemoryLimits
}

func (d Driver) validateMemoryLimits(path *field.Path, mode string) field.ErrorList {
	switch {
	case mode == "":
		return nil
	case !slices.Contains(MemoryLimitModes(), mode):
		return field.ErrorList{field.NotSupported(path, mode, MemoryLimitModes())}
	case !d.limitsMemory():
		return field.ErrorList{field.Invalid(path, mode,
			fmt.Sprintf("a driver before release %d limits none", firstWithMemoryLimits))}
	}
	return nil
}

// library is the NVML library as this driver has it.
func (d Driver) library(content []byte) ([]byte, error) {
	content, err := withoutSymbols(content, d.Lacks)
	if err != nil || d.limitsMemory() || !hasSymbols(content) {
		return content, err
	}
	return withoutSymbols(content, memoryLimitFunctions)
}

// countsMemory is how the driver counts a GPU's memory by control group.
func (s *Spec) countsMemory(c GPU) string {
	if !s.Driver.limitsMemory() {
		return MemoryLimitsOff
	}
	return cmp.Or(c.MemoryLimits, s.Driver.MemoryLimits, MemoryLimitsMisc)
}

// addMemoryLimits adds what is told of the limits of a GPU's memory.
func (s *Spec) addMemoryLimits(told map[string]any, c GPU) {
	mode := s.countsMemory(c)
	if mode == MemoryLimitsOff {
		return
	}
	set := "applied"
	if c.Fault.IgnoresMemoryLimits {
		set = "ignored"
	}
	maps.Copy(told, map[string]any{string(propertyMemoryLimits): mode, string(propertySetMemoryLimits): set})
}

// CgroupDir stands in for the root of the node's control groups of version 2. A kernel without the controller
// dmem has no file of it, and none can be added to its own tree; the node's group of that tree may be mounted
// below CgroupDir.
const CgroupDir = "cgroup"

// DmemCapacity is the file in which the kernel lists the GPUs that it counts.
const DmemCapacity = CgroupDir + "/dmem.capacity"

func (s *Spec) dmemCapacity() []byte {
	var out []byte
	for _, c := range s.GPUs {
		if s.countsMemory(c) == MemoryLimitsDmem {
			out = fmt.Appendf(out, "nvidia/0000%s/vidmem %d\n", c.BusID, s.Models[c.Model].MemoryMiB<<20)
		}
	}
	return out
}

// Memory is a GPU's memory, and how the driver counts it.
type Memory struct {
	MiB, ReservedMiB int64
	// Limits is one of MemoryLimitModes.
	Limits string
}

// Memory is that of the GPU with this UUID.
func (s *Spec) Memory(uuid string) (Memory, error) {
	for i, c := range s.GPUs {
		if s.uuid(i) == uuid {
			model := s.Models[c.Model]
			return Memory{MiB: model.MemoryMiB, ReservedMiB: model.ReservedMiB, Limits: s.countsMemory(c)}, nil
		}
	}
	return Memory{}, fmt.Errorf("the machine has no GPU %s", uuid)
}

// ReloadDriver has the driver of a simulated node forget what it was told, as one does whose kernel module
// is reloaded: compute modes, and limits of memory with all that is charged to them. What holds a
// context keeps it.
func ReloadDriver(root string) error {
	unlock, err := lock(root)
	if err != nil {
		return err
	}
	defer unlock()
	return forget(root)
}

func forget(root string) error {
	for _, kind := range []string{"compute-mode", "memory"} {
		paths, err := filepath.Glob(filepath.Join(root, StateDir, "*."+kind))
		if err != nil {
			return err
		}
		for _, path := range paths {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("forgetting what the driver was told: %w", err)
			}
		}
	}
	return nil
}
