// SPDX-License-Identifier: Apache-2.0

package gpu

import "fmt"

// Use is what a GPU is used for at one moment.
type Use struct {
	Index int
	UUID  string
	// UsedMiB is the memory that is in use, with what the NVIDIA driver keeps for itself; TotalMiB all there is.
	UsedMiB, TotalMiB int64
	// SMPercent is for how much of the time something was computed on the GPU, 0 to 100; nil where it
	// does not tell, as vGPUs.
	SMPercent *int
	// Processes are those that compute on the GPU, or have a context to, in the order of
	// their numbers.
	Processes []Process
	// TellsMPS says that the driver tells which processes are clients of MPS.
	TellsMPS bool
	// Parent is set of an instance of a GPU in MIG mode: the UUID of that GPU. Index is the GPU's then, UUID and
	// all else the instance's.
	Parent string
}

// Name is what of the node it is, for messages.
func (u Use) Name() string {
	if u.Parent == "" {
		return fmt.Sprintf("GPU %d", u.Index)
	}
	return fmt.Sprintf("GPU %d's MIG device %s", u.Index, u.UUID)
}

// Process is a process on a GPU.
type Process struct {
	// PID is its number in the PID namespace of whoever asks; drivers since 560 or so leave
	// out processes that are in none of its namespaces.
	PID int
	// MemoryMiB is what it holds of the GPU's memory, with its context; UnknownMemory where
	// the driver does not tell.
	MemoryMiB int64
	// SMPercent is the part of the time of the multiprocessors that it had; nil where the
	// driver does not tell that by process.
	SMPercent *int
	// MPSClient says that it is a client of MPS. It means nothing unless the GPU TellsMPS.
	MPSClient bool
}

// UnknownMemory is the memory of a process of which the driver does not tell it.
const UnknownMemory = -1
