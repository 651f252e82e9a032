// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// answering is a GPU that answers to both questions as told.
func answering(fields, memory nvml.Return, field nvml.FieldValue) *mock.Device {
	return &mock.Device{
		GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
			if len(values) != 1 || values[0].FieldId != 230 {
				return nvml.ERROR_INVALID_ARGUMENT
			}
			values[0] = field
			return fields
		},
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, memory },
	}
}

func action(number uint32) nvml.FieldValue {
	v := nvml.FieldValue{ValueType: uint32(nvml.VALUE_TYPE_UNSIGNED_INT)}
	binary.NativeEndian.PutUint32(v.Value[:], number)
	return v
}

func refused(ret nvml.Return) nvml.FieldValue { return nvml.FieldValue{NvmlReturn: uint32(ret)} }

func TestCheck(t *testing.T) {
	const ok, unsupported, lost = nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_GPU_IS_LOST
	hangs := answering(ok, ok, action(0))
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	hangs.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
		<-forever
		return nvml.Memory{}, ok
	}
	for name, tc := range map[string]struct {
		device   *mock.Device
		failure  gpu.Failure
		recovery gpu.Recovery
	}{
		"well":                      {answering(ok, ok, action(0)), "", gpu.RecoveryNone},
		"to be reset":               {answering(ok, ok, action(1)), "", gpu.RecoveryReset},
		"an action of tomorrow":     {answering(ok, ok, action(99)), "", gpu.RecoveryOther},
		"an old driver":             {answering(unsupported, ok, action(0)), "", gpu.RecoveryUnknown},
		"an unknown field":          {answering(ok, ok, refused(nvml.ERROR_INVALID_ARGUMENT)), "", gpu.RecoveryUnknown},
		"a GPU without the field":   {answering(ok, ok, refused(unsupported)), "", gpu.RecoveryUnknown},
		"without memory of its own": {answering(ok, unsupported, action(0)), "", gpu.RecoveryNone},
		"lost":                      {answering(lost, ok, action(0)), gpu.FailureLost, ""},
		"lost, as the field says":   {answering(ok, ok, refused(lost)), gpu.FailureLost, ""},
		"lost, as the memory says":  {answering(ok, lost, action(0)), gpu.FailureLost, ""},
		"another error":             {answering(ok, nvml.ERROR_UNKNOWN, action(0)), gpu.FailureError, ""},
		"no driver":                 {answering(ok, nvml.ERROR_UNINITIALIZED, action(0)), gpu.FailureDriver, ""},
		"a value of no known type":  {answering(ok, ok, nvml.FieldValue{ValueType: 77}), gpu.FailureError, ""},
		"hangs":                     {hangs, gpu.FailureNoAnswer, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(lacking(""), Options{})
			r.gpus = []*cachedGPU{known(3, "GPU-a", tc.device), newGPU(time.Minute)}
			got := r.Check(t.Context())
			if len(got) == 1 && (got[0].Message == "") != (tc.failure == "") {
				t.Errorf("message %q", got[0].Message)
			}
			want := []gpu.Condition{{Index: 3, UUID: "GPU-a", Failure: tc.failure, Recovery: tc.recovery}}
			for i := range got {
				got[i].Message = ""
			}
			expect.Equal(t, want, got, "conditions")
			if tc.failure == gpu.FailureNoAnswer {
				if again := r.Check(t.Context()); again[0].Failure != gpu.FailureNoAnswer ||
					len(hangs.GetMemoryInfoCalls()) != 1 {
					t.Errorf("asked again: %v, %d calls", again, len(hangs.GetMemoryInfoCalls()))
				}
			}
		})
	}
}

// A GPU that begins to hang between two readings is left out by the next one, which asks it
// nothing, and is there again when it answers.
func TestReadAfterACheckThatHung(t *testing.T) {
	spec := load(t, "a10x4")
	lib := spec.NVML().(*server.Server)
	r := NewReader(lib, Options{})
	whole := readBy(t, r)
	release := make(chan struct{})
	_, err := bounded.TryWithin(t.Context(), r.gpus[1].Calls, time.Millisecond, "asking", func() (int, error) {
		<-release
		return 0, nil
	})
	expect.ErrorIs(t, err, bounded.ErrHung)
	m := readBy(t, r)
	if len(m.GPUs) != 3 || len(m.Faults) != 1 || m.Faults[0].UUID != whole.GPUs[1].UUID ||
		m.Faults[0].Reason != gpu.FaultUnreadable {
		t.Errorf("GPUs %v, faults %v", m.GPUs, m.Faults)
	}
	close(release)
	for r.gpus[1].Hung() != nil {
		runtime.Gosched()
	}
	expect.Equal(t, whole, readBy(t, r), "the machine after it answered")
}

// quick is a GPU that is well, and keeps no list of its calls.
type quick struct{ *mock.Device }

func (quick) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	values[0] = action(0)
	return nvml.SUCCESS
}

func (quick) GetMemoryInfo() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.SUCCESS }

// What a look at the health of eight GPUs costs beside the driver's own work. It is made
// once a second.
func BenchmarkCheck(b *testing.B) {
	r := NewReader(lacking(""), Options{})
	for i := range 8 {
		r.gpus = append(r.gpus, known(i, "GPU-a", quick{}))
	}
	for b.Loop() {
		if got := r.Check(b.Context()); len(got) != 8 {
			b.Fatal(got)
		}
	}
}

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
	r.Check(t.Context())
	expect.Equal(t, 8*2, calls.Load(), "calls for the health of 8 GPUs")
	for n, want := range []int32{8 * 3, 8, 8} {
		calls.Store(0)
		if uses, err := u.Read(t.Context()); err != nil || len(uses) != 8 || calls.Load() != want {
			t.Errorf("what uses 8 GPUs takes %d calls the %d. time, want %d: %v, %v", calls.Load(), n+1, want, uses, err)
		}
	}
	expect.Equal(t, 1, most.Load(), "GPUs were asked at a time")
}
