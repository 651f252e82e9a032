// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// The recovery action of a GPU whose driver tells of each change is read when it does, now and then, and each time
// while the GPU is not well; that of others each time.
func TestWhenTheRecoveryActionIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newEventDriver(2)
		d.devices[1].GetSupportedEventTypesFunc = func() (uint64, nvml.Return) {
			return nvml.EventTypeXidCriticalError | nvml.EventTypeGpuRecoveryAction, nvml.SUCCESS
		}
		recoveries := NewRecoveries()
		r := NewReader(lacking(""), Options{Recoveries: recoveries})
		var now [2]uint32
		var asked [2]int
		for i := range 2 {
			device := answering(nvml.SUCCESS, nvml.SUCCESS, nvml.FieldValue{})
			device.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
				asked[i]++
				values[0] = action(now[i])
				return nvml.SUCCESS
			}
			r.gpus = append(r.gpus, known(i, []string{"GPU-0", "GPU-1"}[i], device))
		}
		check := func(when string, want [2]int, actions ...gpu.Recovery) {
			t.Helper()
			asked = [2]int{}
			conditions := r.Check(t.Context())
			expect.Equal(t, want, asked, "%s: asked", when)
			for i, want := range actions {
				expect.Equal(t, want, conditions[i].Recovery, "%s: the action of GPU %d is", when, i)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done, ended := make(chan error, 1), make(chan struct{})
		go func() {
			defer close(ended)
			done <- NewEvents(OpenOptions{}, recoveries).watch(ctx, d.library(), func(gpu.Event) {})
		}()
		synctest.Wait()
		check("first", [2]int{1, 1}, gpu.RecoveryNone, gpu.RecoveryNone)
		check("again", [2]int{1, 0}, gpu.RecoveryNone, gpu.RecoveryNone)
		now = [2]uint32{1, 1}
		check("before it is told", [2]int{1, 0}, gpu.RecoveryReset, gpu.RecoveryNone)
		d.queue <- nvml.EventData{Device: d.devices[1], EventType: nvml.EventTypeGpuRecoveryAction}
		synctest.Wait()
		check("told", [2]int{1, 1}, gpu.RecoveryReset, gpu.RecoveryReset)
		now = [2]uint32{}
		check("not well", [2]int{1, 1}, gpu.RecoveryNone, gpu.RecoveryNone)
		check("well", [2]int{1, 0}, gpu.RecoveryNone, gpu.RecoveryNone)
		d.fail(1, 79)
		synctest.Wait()
		check("another event", [2]int{1, 1})
		time.Sleep(recoveryAgain)
		check("after a while", [2]int{1, 1})
		check("soon after", [2]int{1, 0})
		cancel()
		<-ended
		expect.NoError(t, <-done)
		check("no more events", [2]int{1, 1})
		time.Sleep(missingAgain) // the wait for an event that nobody waits for any more ends
	})
}
