// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// ErrNoEvents says that driver or GPUs tell no events.
var ErrNoEvents = errors.New("the driver tells no events of its GPUs")

// waitMilliseconds is how long one wait for an event takes: so long does it take for
// Events.Watch to end.
const waitMilliseconds = 500

// eventKinds are the events that say something of a GPU's health. Which of them a GPU
// tells, the driver knows.
var eventKinds = []struct {
	bit  uint64
	kind gpu.EventKind
}{
	{nvml.EventTypeXidCriticalError, gpu.EventXID},
	{nvml.EventTypeDoubleBitEccError, gpu.EventDoubleBitECC},
	{nvml.EventTypeDramRetirementFailure, gpu.EventRemapFailure},
	{nvml.EventTypeFatalPoisonError, gpu.EventPoison},
	{nvml.EventTypeGpuUnavailableError, gpu.EventUnavailable},
	{nvml.EventTypeGpuRecoveryAction, gpu.EventRecoveryChanged},
}

// Events watches what the driver tells of the node's GPUs. Everything is done on one
// thread, which a call that hangs keeps; until it returns no other is made.
type Events struct {
	opener *Opener
	calls  *bounded.Calls
}

// NewEvents returns Events of the driver that the options name.
func NewEvents(opts OpenOptions) *Events {
	return &Events{opener: NewOpener(opts), calls: newCalls(opts.CallTimeout)}
}

// Watch calls tell for each event of the node's GPUs until the context ends, which is no
// error. It initialises and shuts down the library for itself, so that others may do so
// meanwhile. It is ErrNoEvents where there are none to be had; other errors may be gone
// when it is tried again. It is called by one goroutine at a time.
func (e *Events) Watch(ctx context.Context, tell func(gpu.Event)) error {
	calls := e.calls
	if err := calls.Hung(); err != nil {
		return err
	}
	lib, err := e.opener.Open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if calls.Hung() == nil {
			lib.Shutdown()
		}
	}()
	for _, function := range []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes",
		"nvmlEventSetFree"} {
		if lib.Extensions().LookupSymbol(function) != nil {
			return ErrNoEvents
		}
	}
	set, err := ask(ctx, calls, "making a set of events", lib.EventSetCreate)
	if unsupported(err) {
		return ErrNoEvents
	}
	if err != nil {
		return err
	}
	uuids, err := register(ctx, calls, lib, set)
	if err != nil {
		return err
	}
	return wait(ctx, calls, set, uuids, tell)
}

// register asks for the events of all GPUs that tell some. One that does not answer keeps
// the others from nothing.
func register(ctx context.Context, calls *bounded.Calls, lib nvml.Interface, set nvml.EventSet) (
	map[nvml.Device]string, error) {
	count, err := ask(ctx, calls, "counting the GPUs", lib.DeviceGetCount)
	if err != nil {
		return nil, err
	}
	uuids := map[nvml.Device]string{}
	var failed error
	for i := range count {
		device, uuid, err := registerOne(ctx, calls, lib, set, i)
		switch {
		case err == nil:
			uuids[device] = uuid
		case !unsupported(err):
			failed = err
		}
	}
	switch {
	case len(uuids) > 0:
		return uuids, nil
	case failed != nil:
		return nil, failed
	}
	return nil, ErrNoEvents
}

func registerOne(ctx context.Context, calls *bounded.Calls, lib nvml.Interface, set nvml.EventSet, i int) (
	nvml.Device, string, error) {
	device, err := ask(ctx, calls, fmt.Sprintf("opening GPU %d in NVML's order", i), func() (nvml.Device, nvml.Return) {
		return lib.DeviceGetHandleByIndex(i)
	})
	if err != nil {
		return nil, "", err
	}
	uuid, err := ask(ctx, calls, "reading the UUID", device.GetUUID)
	if err != nil {
		return nil, "", err
	}
	supported, err := ask(ctx, calls, "reading which events there are", device.GetSupportedEventTypes)
	if err != nil {
		return nil, "", err
	}
	var wanted uint64
	for _, k := range eventKinds {
		wanted |= k.bit & supported
	}
	if wanted == 0 {
		return nil, "", nvml.ERROR_NOT_SUPPORTED
	}
	_, err = ask(ctx, calls, "asking for events", func() (struct{}, nvml.Return) {
		return struct{}{}, device.RegisterEvents(wanted, set)
	})
	return device, uuid, err
}

func wait(ctx context.Context, calls *bounded.Calls, set nvml.EventSet, uuids map[nvml.Device]string,
	tell func(gpu.Event)) error {
	defer func() {
		if calls.Hung() == nil {
			set.Free()
		}
	}()
	for ctx.Err() == nil {
		data, err := ask(context.WithoutCancel(ctx), calls, "waiting for events", func() (nvml.EventData, nvml.Return) {
			return set.Wait(waitMilliseconds)
		})
		if errors.Is(err, nvml.ERROR_TIMEOUT) {
			continue
		}
		if err != nil {
			return err
		}
		for _, k := range eventKinds {
			if data.EventType&k.bit != 0 {
				tell(gpu.Event{UUID: uuids[data.Device], Kind: k.kind, XID: data.EventData})
			}
		}
	}
	return nil
}
