// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// eventDriver is a driver with GPUs that tell events.
type eventDriver struct {
	mu sync.Mutex
	// lost are the GPUs that cannot be opened, by index; hangs is never closed before the
	// test ends.
	lost  map[int]bool
	hangs map[int]chan struct{}
	// deaf has each wait fail, as for a GPU that is lost.
	deaf bool
	// sets is how many sets there were, registered are the GPUs whose events the last one has; queue is what it tells.
	sets       int
	registered map[int]bool
	queue      chan nvml.EventData
	devices    []*mock.Device
	// freed says that the set was freed.
	freed bool
}

func newEventDriver(count int) *eventDriver {
	d := &eventDriver{lost: map[int]bool{}, hangs: map[int]chan struct{}{}, registered: map[int]bool{},
		queue: make(chan nvml.EventData, 1)}
	for i := range count {
		d.devices = append(d.devices, &mock.Device{
			GetUUIDFunc: func() (string, nvml.Return) { return fmt.Sprintf("GPU-%d", i), nvml.SUCCESS },
			GetSupportedEventTypesFunc: func() (uint64, nvml.Return) {
				return nvml.EventTypeXidCriticalError, nvml.SUCCESS
			},
			RegisterEventsFunc: func(uint64, nvml.EventSet) nvml.Return {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.registered[i] = true
				return nvml.SUCCESS
			},
		})
	}
	return d
}

func (d *eventDriver) library() nvml.Interface {
	set := &mock.EventSet{
		FreeFunc: func() nvml.Return {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.freed = true
			return nvml.SUCCESS
		},
		WaitFunc: func(milliseconds uint32) (nvml.EventData, nvml.Return) {
			if d.waitFails() {
				return nvml.EventData{}, nvml.ERROR_GPU_IS_LOST
			}
			select {
			case data := <-d.queue:
				if data.Device == nil {
					return data, nvml.ERROR_GPU_IS_LOST
				}
				return data, nvml.SUCCESS
			case <-time.After(time.Duration(milliseconds) * time.Millisecond):
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
		},
	}
	return &mock.Interface{
		ExtensionsFunc: lacking("").ExtensionsFunc,
		EventSetCreateFunc: func() (nvml.EventSet, nvml.Return) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.sets++
			d.registered = map[int]bool{}
			return set, nvml.SUCCESS
		},
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(d.devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			d.mu.Lock()
			hang, lost := d.hangs[i], d.lost[i]
			d.mu.Unlock()
			if hang != nil {
				<-hang
			}
			if lost {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return d.devices[i], nvml.SUCCESS
		},
	}
}

func (d *eventDriver) waitFails() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.registered {
		if d.lost[i] {
			return true
		}
	}
	return d.deaf
}

// lose has GPUs fall off the bus, of which the wait under way tells.
func (d *eventDriver) lose(gpus ...int) {
	d.mu.Lock()
	for _, i := range gpus {
		d.lost[i] = true
	}
	d.mu.Unlock()
	d.queue <- nvml.EventData{}
}

func (d *eventDriver) fail(i int, xid uint64) {
	d.queue <- nvml.EventData{Device: d.devices[i], EventType: nvml.EventTypeXidCriticalError, EventData: xid}
}

// While all GPUs hang nothing is opened again and again that could not be closed.
func TestEventsOfGPUsThatAllHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newEventDriver(2)
		hang := make(chan struct{})
		d.hangs[0], d.hangs[1] = hang, hang
		e := NewEvents(OpenOptions{}, NewRecoveries())
		expect.NoErrorf(t, e.nobodyAnswers(), "before anything was asked")
		expect.ErrorIs(t, e.watch(t.Context(), d.library(), func(gpu.Event) {}), bounded.ErrHung)
		expect.ErrorIs(t, e.nobodyAnswers(), bounded.ErrHung)
		close(hang)
		synctest.Wait()
		expect.NoErrorf(t, e.nobodyAnswers(), "when they have answered")
	})
}

// A GPU that hangs or is lost when events are asked for keeps nobody from those of the
// others, and its own are told from when it answers.
func TestEventsOfOtherGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newEventDriver(3)
		hang := make(chan struct{})
		d.hangs[0], d.lost[2] = hang, true
		var mu sync.Mutex
		var told []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		e := NewEvents(OpenOptions{}, NewRecoveries())
		go func() {
			done <- e.watch(ctx, d.library(), func(event gpu.Event) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprint(event.UUID, " ", event.XID))
			})
		}()
		seen := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			expect.Equal(t, want, told, "told")
		}
		time.Sleep(registerTimeout)
		d.fail(1, 79)
		seen("GPU-1 79")

		d.mu.Lock()
		d.lost[2] = false
		d.mu.Unlock()
		time.Sleep(missingAgain + time.Second)
		d.fail(2, 95)
		seen("GPU-1 79", "GPU-2 95")

		d.mu.Lock()
		d.hangs[0] = nil
		d.mu.Unlock()
		close(hang)
		time.Sleep(missingAgain + time.Second)
		d.fail(0, 48)
		seen("GPU-1 79", "GPU-2 95", "GPU-0 48")

		// The end of the context is the end at once, though the driver waits on: in the set.
		start := time.Now()
		cancel()
		expect.NoError(t, <-done)
		expect.Equal(t, 0, time.Since(start), "it took to end")
		d.mu.Lock()
		if d.freed {
			t.Error("the set was freed under the wait for its events")
		}
		d.mu.Unlock()
		time.Sleep(missingAgain)
	})
}

// A GPU that is lost while events are watched keeps nobody from those of the others, for no moment.
func TestEventsAfterAGPUIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newEventDriver(5)
		told := make(chan string, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- NewEvents(OpenOptions{}, NewRecoveries()).watch(ctx, d.library(), func(event gpu.Event) {
				told <- fmt.Sprint(event.UUID, " ", event.XID)
			})
		}()
		synctest.Wait()
		start := time.Now()
		// The second is lost at once after the first, the third a while later.
		for _, lost := range []int{0, 1, 2} {
			if lost == 2 {
				time.Sleep(time.Hour)
				start = time.Now()
			}
			d.lose(lost)
			synctest.Wait()
			d.fail(4, 79)
			select {
			case got := <-told:
				expect.Equal(t, "GPU-4 79", got, "told")
			case err := <-done:
				t.Fatalf("after GPU %d was lost nothing is told: %v", lost, err)
			}
			expect.Equal(t, 0, time.Since(start), "after GPU %d was lost it took", lost)
		}
		cancel()
		expect.NoError(t, <-done)
		time.Sleep(missingAgain)
	})
}

// Where a GPU is said to be lost again and again, though all can be asked for events, it is not tried without end.
func TestEventsThatCannotBeWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newEventDriver(2)
		d.deaf = true
		err := NewEvents(OpenOptions{}, NewRecoveries()).watch(t.Context(), d.library(), func(gpu.Event) {})
		if !errors.Is(err, nvml.ERROR_GPU_IS_LOST) || d.sets != 2 {
			t.Errorf("%d sets, %v; want 2 and that a GPU is lost", d.sets, err)
		}
	})
}

// Where all are lost, it is tried again after a pause, as where the driver does not work.
func TestEventsOfNoGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newEventDriver(1)
		done := make(chan error, 1)
		go func() {
			done <- NewEvents(OpenOptions{}, NewRecoveries()).watch(t.Context(), d.library(), func(gpu.Event) {})
		}()
		synctest.Wait()
		d.lose(0)
		if err := <-done; !errors.Is(err, nvml.ERROR_GPU_IS_LOST) || d.sets != 2 {
			t.Errorf("%d sets, %v; want 2 and that a GPU is lost", d.sets, err)
		}
	})
}

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
