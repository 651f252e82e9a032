// SPDX-License-Identifier: Apache-2.0

package mode

// Names of what keeps the users of a GPU apart, as the device attribute "isolation" shows them.
const (
	IsolationWholeGPU = "whole-card" // nobody else is given the GPU
	IsolationNone     = "none"       // nothing keeps a container to its share
	IsolationMPS      = "mps"        // NVIDIA's Multi-Process Service, with a daemon for each GPU
	IsolationMPSNode  = "mps-node"   // the same, with one daemon for all of the node's GPUs
	IsolationCGPU     = "cgpu"       // Alibaba Cloud's kernel module
	IsolationHAMi     = "hami"       // HAMi-core, a library in the container
	IsolationKernel   = "kernel"     // NVIDIA's kernel driver, by limits on control groups
	IsolationMIG      = "mig"        // the GPU itself, which an administrator cut into instances
)

// Level says what it takes to get around the isolation; it is the device
// attribute "isolationLevel".
type Level string

// The levels, from none to the strictest. docs/isolation.md says what was seen
// to get around each.
const (
	// LevelNone: any program can take more than its share.
	LevelNone Level = "none"
	// LevelCooperative: a program is held to its share unless it sets out not
	// to be.
	LevelCooperative Level = "cooperative"
	// LevelDriver: the GPU's driver lets no program use the GPU but through what limits
	// it, and that gives no program more than the largest share of the GPU.
	LevelDriver Level = "driver"
	// LevelDeviceMemory: the GPU's kernel driver refuses a container the memory beyond its
	// share that it allocates on the device, whatever its programs do. It holds neither managed
	// memory, nor what other processes share with it, nor containers with CAP_SYS_ADMIN, nor
	// compute (limits.md §7, §10.12).
	LevelDeviceMemory Level = "device-memory"
	// LevelKernel: a module of the host's kernel enforces the share.
	LevelKernel Level = "kernel"
	// LevelGPU: the GPU has one user, who is not given any other GPU.
	LevelGPU Level = "card"
)

// Meaning is what the level is worth, in words, as in docs/isolation.md; empty for a level that is not known.
func (l Level) Meaning() string {
	switch l {
	case LevelGPU:
		return "nobody else is on the GPU"
	case LevelKernel:
		return "a kernel module enforces the share"
	case LevelDriver:
		return "NVIDIA's kernel driver keeps programs in MPS"
	case LevelDeviceMemory:
		return "NVIDIA's kernel driver holds what a container allocates on the GPU, and nothing else"
	case LevelCooperative:
		return "a program is held to its share unless it sets out not to be"
	case LevelNone:
		return "nothing holds a program to its share"
	}
	return ""
}

// Daemon says which MPS control daemon a GPU's users are clients of.
type Daemon string

// The daemons.
const (
	NoDaemon     Daemon = ""
	DaemonOfGPU  Daemon = "gpu"  // each GPU has one of its own
	DaemonOfNode Daemon = "node" // one has all of the node's GPUs
)

// Isolation is a back end that keeps the users of a GPU apart, as its devices show it.
type Isolation struct {
	// Name is the device attribute "isolation", Level the attribute "isolationLevel" unless the GPU has a stricter one.
	Name  string
	Level Level
	// Shares is how many shares of one GPU it keeps apart, 0 if it sets no limit.
	Shares int64
	Daemon Daemon
}

// Isolations are all that there are.
func Isolations() []Isolation {
	return []Isolation{
		{IsolationWholeGPU, LevelGPU, 0, NoDaemon},
		{IsolationNone, LevelNone, 0, NoDaemon},
		{IsolationMPS, LevelCooperative, 48, DaemonOfGPU}, // clients that connected on an H200
		{IsolationMPSNode, LevelCooperative, 48, DaemonOfNode},
		{IsolationCGPU, LevelKernel, 20, NoDaemon}, // as ACK documents it
		{IsolationHAMi, LevelCooperative, 0, NoDaemon},
		{IsolationKernel, LevelDeviceMemory, 0, NoDaemon},
		{IsolationMIG, LevelKernel, 0, NoDaemon},
	}
}

// IsolationNamed is the one of that name; the zero Isolation if there is none.
func IsolationNamed(name string) Isolation {
	for _, i := range Isolations() {
		if i.Name == name {
			return i
		}
	}
	return Isolation{}
}

// ByMPS reports whether the isolation of that name has a GPU's users be clients of MPS.
func ByMPS(name string) bool { return IsolationNamed(name).Daemon != NoDaemon }

// AutoIsolation is the one that a node chooses for a mode where no setting names another: of those that limit all that
// the mode does, that by which most is held. module is whether Alibaba's module is loaded there, which somebody has
// done on purpose, and which limits compute; kernel whether NVIDIA's kernel driver can limit memory on all GPUs.
func AutoIsolation(m Mode, module, kernel bool) Isolation {
	name := IsolationMPS
	switch {
	case m == MIG:
		name = IsolationMIG
	case m == Share:
		name = IsolationNone
	case !m.Shared():
		name = IsolationWholeGPU
	case m == MPS:
	case module:
		name = IsolationCGPU
	case kernel && !m.CountsCores():
		name = IsolationKernel
	}
	return IsolationNamed(name)
}
