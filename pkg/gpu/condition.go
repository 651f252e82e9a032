// SPDX-License-Identifier: Apache-2.0

package gpu

// Condition is what a GPU, and the driver about it, answers at one moment.
type Condition struct {
	Index int
	UUID  string
	// Failure is empty if the GPU answers.
	Failure Failure
	// Message says what was asked and what came back, if it does not.
	Message string
	// Recovery is what the driver wants to be done before the GPU is used again;
	// RecoveryUnknown if it does not tell, as drivers before 570 do not.
	Recovery Recovery
	// Instances are those of a GPU in MIG mode that can be handed out, as they were read last, by the UUIDs of their MIG
	// devices. They are not asked: what the GPU answers holds for all of it.
	Instances map[string]InstanceID
}

// Failure is how a GPU does not answer.
type Failure string

// Failures of a GPU.
const (
	FailureLost     Failure = "lost"      // fallen off the bus (NVML: GPU_IS_LOST)
	FailureNoAnswer Failure = "no-answer" // a call did not return in time
	FailureError    Failure = "error"     // NVML answers with another error
	FailureDriver   Failure = "no-driver" // the driver itself does not answer
)

// Recovery is NVML's recovery action of a GPU (nvmlDeviceGetFieldValues, field 230,
// NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).
type Recovery string

// Recovery actions, as nvidia-smi's query gpu_recovery_action names them.
const (
	RecoveryUnknown       Recovery = ""
	RecoveryNone          Recovery = "none"
	RecoveryReset         Recovery = "gpu-reset"
	RecoveryReboot        Recovery = "node-reboot"
	RecoveryDrainP2P      Recovery = "drain-p2p"
	RecoveryDrainAndReset Recovery = "drain-and-reset"
	RecoveryIMEX          Recovery = "recover-imex-domain"
	RecoveryBusReset      Recovery = "bus-reset"
	RecoverySystemReboot  Recovery = "system-reboot"
	// RecoveryOther is one that is newer than this driver.
	RecoveryOther Recovery = "other"
)

// Event is what the driver tells of a GPU at the moment at which it happens.
type Event struct {
	// UUID is empty where the GPU could not be told: then it may be any.
	UUID string
	// OfInstance says that it is about a part of a GPU in MIG mode, Instance about which. Its CI may be NoCI: then it is
	// about the GPU instance as a whole.
	OfInstance bool
	Instance   InstanceID
	Kind       EventKind
	// XID is the number of an error, of EventXID.
	XID uint64
}

// EventKind is a kind of NVML event.
type EventKind string

// Kinds of events (nvmlEventType…).
const (
	EventXID             EventKind = "xid"
	EventDoubleBitECC    EventKind = "double-bit-ecc"
	EventRemapFailure    EventKind = "row-remap-failure"
	EventPoison          EventKind = "fatal-poison"
	EventUnavailable     EventKind = "gpu-unavailable"
	EventRecoveryChanged EventKind = "recovery-action"
	// EventMIGChanged says that instances were made or taken away, or the MIG mode was switched.
	EventMIGChanged EventKind = "mig-config"
)
