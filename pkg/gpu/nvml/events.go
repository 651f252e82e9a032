// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

// ErrNoEvents says that driver or GPUs tell no events.
var ErrNoEvents = errors.New("the driver tells no events of its GPUs")

// eventKinds are the events that say something of a GPU's health, or that it is cut otherwise. Which of them a
// GPU tells, the driver knows.
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
	{nvml.EventMigConfigChange, gpu.EventMIGChanged},
}

// noInstance are both ids of an event that is about all of a GPU.
const noInstance = math.MaxUint32

// partOf is the instance that an event is about.
func partOf(data nvml.EventData) (part gpu.InstanceID, ok bool) {
	if data.GpuInstanceId == noInstance {
		return gpu.InstanceID{}, false
	}
	part = gpu.InstanceID{GI: int(data.GpuInstanceId), CI: int(data.ComputeInstanceId)}
	if data.ComputeInstanceId == noInstance {
		part.CI = gpu.NoCI
	}
	return part, true
}

const (
	// missingAgain is how often those GPUs are asked for events that could not be before, and
	// how long one wait for an event takes at most. It is long: the Go runtime polls for
	// milliseconds after each call that waits in C.
	missingAgain = 10 * time.Second
	// registerTimeout is how long one of them may keep the others waiting.
	registerTimeout = 3 * time.Second
)

// Events watches what the driver tells of the node's GPUs. It waits on one thread, and asks
// each GPU for events by calls of its own: one that hangs keeps a thread until it returns,
// and the others from nothing.
type Events struct {
	opener  *Opener
	timeout time.Duration
	calls   *bounded.Calls
	// gpus are the calls on each GPU, in NVML's order.
	gpus []*bounded.Calls
	// recoveries are told which GPUs tell of theirs, and when they do.
	recoveries *Recoveries
}

// NewEvents returns Events of the driver that the options name, of which the recoveries are told.
func NewEvents(opts OpenOptions, recoveries *Recoveries) *Events {
	return &Events{opener: NewOpener(opts), timeout: orDefault(opts.CallTimeout), calls: newCalls(opts.CallTimeout),
		recoveries: recoveries}
}

// Watch calls tell for each event of the node's GPUs until the context ends, which is no
// error. It initialises and shuts down the library for itself, so that others may do so
// meanwhile; when the context ends, the library stays, for its wait may be under way for some
// seconds more. It is ErrNoEvents where there are none to be had; other errors may be gone
// when it is tried again. It is called by one goroutine at a time.
func (e *Events) Watch(ctx context.Context, tell func(gpu.Event)) error {
	if err := e.nobodyAnswers(); err != nil {
		return err
	}
	lib, err := e.opener.Open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e.hung() == nil {
			lib.Shutdown()
		}
	}()
	return e.watch(ctx, lib, tell)
}

// nobodyAnswers is why there would be nothing to watch. The library and its set of events could not be given back then.
func (e *Events) nobodyAnswers() error {
	if err := e.calls.Hung(); err != nil {
		return err
	}
	if slices.ContainsFunc(e.gpus, func(calls *bounded.Calls) bool { return calls.Hung() == nil }) {
		return nil
	}
	return e.hung()
}

// hung is the error of a call that has not returned. The library must not be shut down then.
func (e *Events) hung() error {
	err := e.calls.Hung()
	for _, calls := range e.gpus {
		err = cmp.Or(err, calls.Hung())
	}
	return err
}

func (e *Events) watch(ctx context.Context, lib nvml.Interface, tell func(gpu.Event)) error {
	for _, function := range []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes",
		"nvmlEventSetFree"} {
		if lib.Extensions().LookupSymbol(function) != nil {
			return ErrNoEvents
		}
	}
	for last := math.MaxInt; ; {
		began := time.Now()
		gpus, err := e.watchSet(ctx, lib, tell)
		// A GPU that is lost ends the waiting for the events of all, and nobody keeps those that come while there is no
		// set. A new set is without that GPU; where it is not, and ends at once, too, another one would as well.
		again := errors.Is(err, nvml.ERROR_GPU_IS_LOST) && gpus > 0
		if !again || gpus >= last && time.Since(began) < missingAgain {
			return err
		}
		last = gpus
	}
}

// watchSet watches with one set of events. gpus is how many GPUs tell theirs.
func (e *Events) watchSet(ctx context.Context, lib nvml.Interface, tell func(gpu.Event)) (gpus int, err error) {
	set, err := ask(ctx, e.calls, "making a set of events", lib.EventSetCreate)
	if unsupported(err) {
		return 0, ErrNoEvents
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		if e.hung() == nil {
			set.Free()
		}
	}()
	count, err := ask(ctx, e.calls, "counting the GPUs", lib.DeviceGetCount)
	if err != nil {
		return 0, err
	}
	for len(e.gpus) < count {
		e.gpus = append(e.gpus, newCalls(min(e.timeout, registerTimeout)))
	}
	w := &watch{Events: e, lib: lib, set: set, uuids: map[nvml.Device]string{}}
	defer e.recoveries.lost()
	for i := range count {
		w.missing = append(w.missing, i)
	}
	failed := w.register(ctx)
	if len(w.uuids) == 0 {
		return 0, cmp.Or(failed, ErrNoEvents)
	}
	err = w.wait(ctx, tell)
	return len(w.uuids), err
}

// watch is one set of events.
type watch struct {
	*Events
	lib nvml.Interface
	set nvml.EventSet
	// uuids are the GPUs whose events are in the set, missing those, by their places in NVML's order, that could not be
	// asked for theirs.
	uuids   map[nvml.Device]string
	missing []int
}

// register asks for the events of all GPUs that are missing, side by side. It returns why
// one of them could not be asked; GPUs that have no events are not missed any more.
func (w *watch) register(ctx context.Context) error {
	type answer struct {
		registered
		err error
	}
	answers := make([]answer, len(w.missing))
	var wg sync.WaitGroup
	for i, index := range w.missing {
		wg.Go(func() { answers[i].registered, answers[i].err = w.registerOne(ctx, index) })
	}
	wg.Wait()
	var missing []int
	var failed error
	for i, a := range answers {
		switch {
		case a.err == nil:
			w.uuids[a.device] = a.uuid
			if a.events&nvml.EventTypeGpuRecoveryAction != 0 {
				w.recoveries.watch(a.uuid)
			}
		case !unsupported(a.err):
			missing, failed = append(missing, w.missing[i]), a.err
		}
	}
	w.missing = missing
	return failed
}

// registered is a GPU, and the events that it was asked for.
type registered struct {
	device nvml.Device
	uuid   string
	events uint64
}

func (w *watch) registerOne(ctx context.Context, i int) (registered, error) {
	calls := w.gpus[i]
	device, err := ask(ctx, calls, fmt.Sprintf("opening GPU %d in NVML's order", i), func() (nvml.Device, nvml.Return) {
		return w.lib.DeviceGetHandleByIndex(i)
	})
	if err != nil {
		return registered{}, err
	}
	uuid, err := ask(ctx, calls, "reading the UUID", device.GetUUID)
	if err != nil {
		return registered{}, err
	}
	supported, err := ask(ctx, calls, "reading which events there are", device.GetSupportedEventTypes)
	if err != nil {
		return registered{}, err
	}
	var wanted uint64
	for _, k := range eventKinds {
		wanted |= k.bit & supported
	}
	if wanted == 0 {
		return registered{}, nvml.ERROR_NOT_SUPPORTED
	}
	err = do(ctx, calls, "asking for events", func() nvml.Return { return device.RegisterEvents(wanted, w.set) })
	return registered{device, uuid, wanted}, err
}

// wait tells events until the context ends or the set fails. Between two waits it asks GPUs
// for events that could not be asked before.
func (w *watch) wait(ctx context.Context, tell func(gpu.Event)) error {
	asked := time.Now()
	for ctx.Err() == nil {
		if len(w.missing) > 0 && time.Since(asked) >= missingAgain {
			// Why one is still missing shows in its health.
			_ = w.register(ctx)
			asked = time.Now()
		}
		data, err := askWithin(ctx, w.calls, missingAgain+w.timeout, "waiting for events",
			func() (nvml.EventData, nvml.Return) { return w.set.Wait(uint32(missingAgain.Milliseconds())) })
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, nvml.ERROR_TIMEOUT):
			continue
		case err != nil:
			return err
		}
		w.recoveries.told(w.uuids[data.Device])
		for _, k := range eventKinds {
			if data.EventType&k.bit != 0 {
				e := gpu.Event{UUID: w.uuids[data.Device], Kind: k.kind, XID: data.EventData}
				// Only XIDs have them; on GPUs that are not in MIG mode, too: none, by NVIDIA's documentation.
				if k.kind == gpu.EventXID {
					e.Instance, e.OfInstance = partOf(data)
				}
				tell(e)
			}
		}
	}
	return nil
}
