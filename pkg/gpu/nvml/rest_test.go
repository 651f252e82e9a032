// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// counted is a GPU without processes that counts what it is asked, and how many ask at a time.
type counted struct {
	*mock.Device
	calls, asking, most *atomic.Int32
}

func (c counted) note() func() {
	c.calls.Add(1)
	c.most.Store(max(c.most.Load(), c.asking.Add(1)))
	return func() { c.asking.Add(-1) }
}

func (c counted) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	defer c.note()()
	values[0] = action(0)
	return nvml.SUCCESS
}

func (c counted) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	defer c.note()()
	return nvml.Memory{}, nvml.SUCCESS
}

func (c counted) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	defer c.note()()
	return nvml.Utilization{}, nvml.SUCCESS
}

func (c counted) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	defer c.note()()
	return nil, nvml.SUCCESS
}

// What GPUs are asked each second, and for the audit each two seconds, on a node where nothing runs: who
// adds a call adds to what each node pays all the time. One goroutine asks them all.
func TestCallsAtRest(t *testing.T) {
	var calls, asking, most atomic.Int32
	lib := lacking("")
	r := NewReader(lib, Options{})
	u := &Uses{lib: lib, next: time.Now().Add(time.Hour), tellsProcesses: true, tellsMPS: true, tellsRates: true,
		tellsUtilization: true}
	for i := range 8 {
		c := known(i, "GPU-a", counted{calls: &calls, asking: &asking, most: &most})
		r.gpus, u.gpus = append(r.gpus, c), append(u.gpus, &usedGPU{cachedGPU: c})
	}
	if r.Check(t.Context()); calls.Load() != 8*2 {
		t.Errorf("the health of 8 GPUs takes %d calls, want %d", calls.Load(), 8*2)
	}
	for n, want := range []int32{8 * 3, 8, 8} {
		calls.Store(0)
		if uses, err := u.Read(t.Context()); err != nil || len(uses) != 8 || calls.Load() != want {
			t.Errorf("what uses 8 GPUs takes %d calls the %d. time, want %d: %v, %v", calls.Load(), n+1, want, uses, err)
		}
	}
	expect.Equal(t, 1, most.Load(), "GPUs were asked at a time")
}
