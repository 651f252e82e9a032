// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// checkTimeout is how long a GPU may take to answer when it is only asked whether it is
// well: it does within a millisecond, and one that hangs is to be known within two seconds.
const checkTimeout = time.Second

// Check asks each GPU of the last reading but those for a screen whether it is well. It takes a second at most: see
// bounded.Each. A GPU of which a call hangs is not asked again until that returns. Those of which
// not even the UUID is known are left out.
func (r *Reader) Check(ctx context.Context) []gpu.Condition {
	var checked []*cachedGPU
	var calls []*bounded.Calls
	for _, c := range r.gpus {
		if c.gpu.UUID != "" && c.handle != nil && !c.display {
			checked, calls = append(checked, c), append(calls, c.Calls)
		}
	}
	ask := make([]bool, len(checked))
	for i, c := range checked {
		ask[i] = r.tellsFields && c.recoveryDue(r.opts.Recoveries)
	}
	recoveries, errs := bounded.Each(ctx, calls, checkTimeout, func(i int, doing func(string)) (gpu.Recovery, error) {
		return check(checked[i].handle, checked[i].recovery.action, ask[i], doing)
	})
	conditions := make([]gpu.Condition, len(checked))
	for i, c := range checked {
		conditions[i] = conditionOf(recoveries[i], errs[i])
		c.noteRecovery(conditions[i], ask[i])
		conditions[i].Index, conditions[i].UUID, conditions[i].Instances = c.gpu.Index, c.gpu.UUID, c.handedOut
	}
	return conditions
}

// recoveryAgain is how often the recovery action is read of a GPU that is well and tells its changes.
const recoveryAgain = 10 * time.Second

// recovery is an action as it was read last; zero if it was not.
type recovery struct {
	action gpu.Recovery
	read   time.Time
}

// recoveryDue reports whether to read the action. That of a GPU which is not well is read each time.
func (c *cachedGPU) recoveryDue(told *Recoveries) bool {
	// It has to be asked, whatever else is due: what it was told of is read then.
	changed := told.due(c.gpu.UUID)
	return changed || c.recovery.action != gpu.RecoveryNone || time.Since(c.recovery.read) >= recoveryAgain
}

// noteRecovery keeps what was read, or that it could not be.
func (c *cachedGPU) noteRecovery(answer gpu.Condition, read bool) {
	switch {
	case answer.Failure != "":
		c.recovery = recovery{}
	case read:
		c.recovery = recovery{answer.Recovery, time.Now()}
	}
}

// conditionOf is what a GPU's answer means.
func conditionOf(recovery gpu.Recovery, err error) gpu.Condition {
	var condition gpu.Condition
	switch {
	case err == nil:
		condition.Recovery = recovery
		return condition
	case errors.Is(err, nvml.ERROR_GPU_IS_LOST):
		condition.Failure = gpu.FailureLost
	case errors.Is(err, bounded.ErrHung):
		condition.Failure = gpu.FailureNoAnswer
	case errors.Is(err, nvml.ERROR_UNINITIALIZED), errors.Is(err, nvml.ERROR_DRIVER_NOT_LOADED):
		condition.Failure = gpu.FailureDriver
	default:
		condition.Failure = gpu.FailureError
	}
	condition.Message = err.Error()
	return condition
}

// check asks a GPU for its recovery action, unless it is still the one that was read last, and whether it is there. The
// action does not tell that: the driver keeps it, and answers for a GPU that hangs, too (source: OBJGPU of
// open-gpu-kernel-modules).
func check(device nvml.Device, recovery gpu.Recovery, fields bool, doing func(what string)) (gpu.Recovery, error) {
	if fields {
		doing("reading the recovery action")
		var err error
		if recovery, err = recoveryAction(device); err != nil {
			return recovery, err
		}
	}
	doing("reading the memory")
	if _, ret := device.GetMemoryInfo(); !unsupported(ret) {
		return recovery, result(ret)
	}
	return recovery, nil
}

func recoveryAction(device nvml.Device) (gpu.Recovery, error) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	err := result(device.GetFieldValues(values))
	if err == nil {
		err = result(nvml.Return(values[0].NvmlReturn))
	}
	switch {
	// What is not known of the field's number calls it an invalid argument.
	case unsupported(err), errors.Is(err, nvml.ERROR_INVALID_ARGUMENT):
		return gpu.RecoveryUnknown, nil
	case err != nil:
		return gpu.RecoveryUnknown, err
	}
	return recoveryOf(values[0])
}

// recoveryOf reads the value, which is an unsigned integer of whatever width.
func recoveryOf(value nvml.FieldValue) (gpu.Recovery, error) {
	var action uint64
	switch nvml.ValueType(value.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		action = uint64(binary.NativeEndian.Uint32(value.Value[:4]))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		action = binary.NativeEndian.Uint64(value.Value[:])
	default:
		return gpu.RecoveryUnknown, fmt.Errorf("its value is of type %d", value.ValueType)
	}
	if known, is := recoveryActions[nvml.DeviceGpuRecoveryAction(action)]; is {
		return known, nil
	}
	return gpu.RecoveryOther, nil
}

// recoveryActions are NVML's.
var recoveryActions = map[nvml.DeviceGpuRecoveryAction]gpu.Recovery{
	nvml.GPU_RECOVERY_ACTION_NONE:                gpu.RecoveryNone,
	nvml.GPU_RECOVERY_ACTION_GPU_RESET:           gpu.RecoveryReset,
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         gpu.RecoveryReboot,
	nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           gpu.RecoveryDrainP2P,
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     gpu.RecoveryDrainAndReset,
	nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: gpu.RecoveryIMEX,
	nvml.GPU_RECOVERY_ACTION_BUS_RESET:           gpu.RecoveryBusReset,
	nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       gpu.RecoverySystemReboot,
}
