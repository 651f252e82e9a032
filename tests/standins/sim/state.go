// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// State is how a GPU is used and how well it is. All of it is seen through the library
// only, not through NVML.
type State struct {
	// ComputeMode is the compute mode that the GPU comes up with, as NVML's number. The
	// one that is set at run time is not in the machine file.
	ComputeMode int `yaml:"computeMode,omitempty"`
	// Processes are those that have a context on the GPU.
	Processes []Process `yaml:"processes,omitempty"`
	// RecoveryAction is what the driver wants done with the GPU, as NVML's number: field
	// 230 of nvmlDeviceGetFieldValues.
	RecoveryAction int `yaml:"recoveryAction,omitempty"`
	// Fields are other values of nvmlDeviceGetFieldValues, by their numbers.
	Fields map[int]int64 `yaml:"fields,omitempty"`
	// Corrected and Uncorrected count ECC errors.
	Corrected   int64 `yaml:"correctedErrors,omitempty"`
	Uncorrected int64 `yaml:"uncorrectedErrors,omitempty"`
	// RemappedRows are what became of rows with errors, on GPUs that remap them.
	RemappedRows RemappedRows `yaml:"remappedRows,omitempty"`
}

// Process is a process as NVML lists it.
type Process struct {
	PID       int   `yaml:"pid"`
	MemoryMiB int64 `yaml:"memoryMiB"`
	// SMPercent is its share of the time of the GPU's multiprocessors; absent where it
	// has not computed anything.
	SMPercent *int `yaml:"smPercent,omitempty"`
	// MPS says that it is a client of MPS.
	MPS bool `yaml:"mps,omitempty"`
	// Instance is where the GPU instance begins that it is in, of a GPU in MIG mode.
	Instance *int `yaml:"instance,omitempty"`
}

// RemappedRows are numbers of rows, and whether the next reset will remap more, or
// remapping has failed.
type RemappedRows struct {
	Corrected   int  `yaml:"corrected,omitempty"`
	Uncorrected int  `yaml:"uncorrected,omitempty"`
	Pending     bool `yaml:"pending,omitempty"`
	Failed      bool `yaml:"failed,omitempty"`
}

// Event is something that NVML tells those who wait for it.
type Event struct {
	// Number orders the events: who waits has seen all up to a number.
	Number uint64 `yaml:"number"`
	GPU    int    `yaml:"card"`
	Type   string `yaml:"type"` // see EventTypes
	// Data is the number of an XID.
	Data uint64 `yaml:"data,omitempty"`
	// Instance are the ids of the GPU instance and the compute instance that it is about, if it is.
	Instance []int `yaml:"instance,omitempty,flow"`
}

var eventTypes = map[string]uint64{
	"doubleBitECC":    nvml.EventTypeDoubleBitEccError,
	"xid":             nvml.EventTypeXidCriticalError,
	"gpuUnavailable":  nvml.EventTypeGpuUnavailableError,
	"recoveryAction":  nvml.EventTypeGpuRecoveryAction,
	"migConfigChange": nvml.EventMigConfigChange,
}

// EventTypes lists the types of events that a machine file can have.
func EventTypes() []string { return slices.Sorted(maps.Keys(eventTypes)) }

// fieldRecoveryAction is NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
const fieldRecoveryAction = nvml.FI_DEV_GET_GPU_RECOVERY_ACTION

// maxProcesses is what the library has room for.
const maxProcesses = 1024

func (s State) validate(path *field.Path) field.ErrorList {
	errs := inRange(path.Child("computeMode"), int64(s.ComputeMode), 0, int64(nvml.COMPUTEMODE_COUNT)-1)
	errs = append(errs, inRange(path.Child("recoveryAction"), int64(s.RecoveryAction), 0, 7)...)
	if len(s.Processes) >= maxProcesses {
		errs = append(errs, field.TooMany(path.Child("processes"), len(s.Processes), maxProcesses-1))
	}
	for i, p := range s.Processes {
		at := path.Child("processes").Index(i)
		errs = append(errs, inRange(at.Child("pid"), int64(p.PID), 1, 1<<22)...)
		errs = append(errs, inRange(at.Child("memoryMiB"), p.MemoryMiB, 0, maxMemoryMiB)...)
		if p.SMPercent != nil {
			errs = append(errs, inRange(at.Child("smPercent"), int64(*p.SMPercent), 0, 100)...)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Fields)) {
		errs = append(errs, inRange(path.Child("fields"), int64(id), 1, 1<<16)...)
	}
	for name, n := range map[string]int64{
		"correctedErrors": s.Corrected, "uncorrectedErrors": s.Uncorrected,
		"remappedRows.corrected":   int64(s.RemappedRows.Corrected),
		"remappedRows.uncorrected": int64(s.RemappedRows.Uncorrected),
	} {
		errs = append(errs, inRange(path.Child(name), n, 0, 1<<31)...)
	}
	return errs
}

func (s *Spec) validateEvents() field.ErrorList {
	var errs field.ErrorList
	var last uint64
	for i, e := range s.Events {
		path := field.NewPath("events").Index(i)
		if e.Number <= last {
			errs = append(errs, field.Invalid(path.Child("number"), e.Number, "must be larger than that of the event before"))
		}
		last = e.Number
		if e.GPU < 0 || e.GPU >= len(s.GPUs) {
			errs = append(errs, field.Invalid(path.Child("card"), e.GPU, "no such GPU"))
		}
		if n := len(e.Instance); n != 0 && n != 2 {
			errs = append(errs, field.Invalid(path.Child("instance"), e.Instance, "must be two ids"))
		}
		if _, ok := eventTypes[e.Type]; !ok {
			errs = append(errs, field.NotSupported(path.Child("type"), e.Type, EventTypes()))
		}
	}
	return errs
}

// line is the process as ToldFile has it: in that GPU instance and compute instance, -1 for none.
func (p Process) line(gi, ci int) string {
	percent := -1
	if p.SMPercent != nil {
		percent = *p.SMPercent
	}
	return fmt.Sprintf("%d %d %d %d %d %d", p.PID, p.MemoryMiB, percent, number(p.MPS), gi, ci)
}
