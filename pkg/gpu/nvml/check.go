// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// checkTimeout is how long a GPU may take to answer when it is only asked whether it is
// well: it does within a millisecond, and one that hangs is to be known within two seconds.
const checkTimeout = time.Second

// Check asks each GPU of the last reading whether it is well, all side by side. It takes
// a second at most. A GPU of which a call hangs is not asked again until that returns. GPUs
// in MIG mode, and those of which not even the UUID is known, are left out.
func (r *Reader) Check(ctx context.Context) []gpu.Condition {
	var checked []*card
	for _, c := range r.cards {
		if c.gpu.UUID != "" && c.handle != nil && !errors.Is(c.failure, errMIGEnabled) {
			checked = append(checked, c)
		}
	}
	conditions := make([]gpu.Condition, len(checked))
	var wg sync.WaitGroup
	for i, c := range checked {
		wg.Go(func() { conditions[i] = r.check(ctx, c) })
	}
	wg.Wait()
	return conditions
}

func (r *Reader) check(ctx context.Context, c *card) gpu.Condition {
	condition := gpu.Condition{Index: c.gpu.Index, UUID: c.gpu.UUID}
	recovery, err := r.recovery(ctx, c)
	if err == nil {
		// A driver that tells no recovery action tells at least whether the GPU is there.
		_, err = askWithin(ctx, c.Calls, checkTimeout, "reading the memory", c.handle.GetMemoryInfo)
	}
	switch {
	case err == nil || unsupported(err):
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

// recovery is the GPU's recovery action; unknown where driver or GPU tell none.
func (r *Reader) recovery(ctx context.Context, c *card) (gpu.Recovery, error) {
	if !r.has("nvmlDeviceGetFieldValues") {
		return gpu.RecoveryUnknown, nil
	}
	value, err := askWithin(ctx, c.Calls, checkTimeout, "reading the recovery action",
		func() (nvml.FieldValue, nvml.Return) {
			values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
			if ret := c.handle.GetFieldValues(values); ret != nvml.SUCCESS {
				return nvml.FieldValue{}, ret
			}
			return values[0], nvml.Return(values[0].NvmlReturn)
		})
	switch {
	// What is not known of the field's number calls it an invalid argument.
	case unsupported(err), errors.Is(err, nvml.ERROR_INVALID_ARGUMENT):
		return gpu.RecoveryUnknown, nil
	case err != nil:
		return gpu.RecoveryUnknown, err
	}
	return recoveryOf(value)
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
		return gpu.RecoveryUnknown, fmt.Errorf("reading the recovery action: its value is of type %d", value.ValueType)
	}
	switch nvml.DeviceGpuRecoveryAction(action) {
	case nvml.GPU_RECOVERY_ACTION_NONE:
		return gpu.RecoveryNone, nil
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET:
		return gpu.RecoveryReset, nil
	case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:
		return gpu.RecoveryReboot, nil
	case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:
		return gpu.RecoveryDrainP2P, nil
	case nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return gpu.RecoveryDrainAndReset, nil
	case nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN:
		return gpu.RecoveryIMEX, nil
	case nvml.GPU_RECOVERY_ACTION_BUS_RESET:
		return gpu.RecoveryBusReset, nil
	case nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return gpu.RecoverySystemReboot, nil
	}
	return gpu.RecoveryOther, nil
}
