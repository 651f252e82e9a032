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

const (
	// useTimeout is how long a call about the use of a GPU may take. They take less than a
	// millisecond each.
	useTimeout = time.Second
	// lookAgain is how often it is looked which GPUs there are, and whether one is in MIG
	// mode; lookSoon how soon where one did not answer.
	lookAgain = time.Minute
	lookSoon  = 10 * time.Second
	// idleAgain is how often memory and utilization are read of a GPU that has no processes.
	idleAgain = 8 * time.Second
)

// Uses reads what the node's GPUs are used for, again and again. It initialises the library
// for itself, so that others may do so meanwhile. A GPU of which a call hangs is not asked
// again until that returns, and the others are. It is used by one goroutine at a time.
type Uses struct {
	opener *Opener
	system *bounded.Calls
	lib    nvml.Interface
	// reader finds the GPUs.
	reader *Reader
	gpus   []*usedGPU
	// next is when to look again which GPUs there are.
	next time.Time
	// What the library has.
	tellsProcesses, tellsMPS, tellsRates, tellsUtilization bool
}

// usedGPU is a GPU, found at its position in NVML's order.
type usedGPU struct {
	*cachedGPU
	// since is the time of the last sample of a process' utilization.
	since uint64
	// last is what was read last; where that was a GPU without processes, it holds until idleUntil.
	last      gpu.Use
	idleUntil time.Time
	// parts are the instances of one in MIG mode that can be handed out; parent is the UUID of the GPU of one of these.
	parts  []*usedGPU
	parent string
}

// use is what was read of a GPU, or of an instance.
type use struct {
	gpu.Use
	// since is the time of the last sample of a process' utilization.
	since uint64
	// idle says that the GPU has no processes, fresh that all of it was read just now.
	idle, fresh bool
}

// NewUses returns Uses of the driver that the options name. Nothing is opened before Read.
func NewUses(opts OpenOptions) *Uses {
	return &Uses{opener: NewOpener(opts), system: newCalls(opts.CallTimeout)}
}

// Read reads all GPUs (see bounded.Each) and returns those that answer, in the order of their
// indices. Of those in MIG mode their instances are read instead, those that can be handed out. An
// error is one that keeps all of them from being read, or, beside what could be read, why GPUs
// were left out.
func (u *Uses) Read(ctx context.Context) ([]gpu.Use, error) {
	if err := u.look(ctx); err != nil {
		return nil, err
	}
	gpus := u.gpus
	calls := make([]*bounded.Calls, len(gpus))
	for i, c := range gpus {
		calls[i] = c.Calls
	}
	uses, errs := bounded.Each(ctx, calls, useTimeout, func(i int, doing func(string)) ([]use, error) {
		switch {
		case gpus[i].failure != nil:
			return nil, gpus[i].failure
		case gpus[i].gpu.MIG.Enabled:
			return u.readParts(gpus[i], doing)
		}
		one, err := u.read(gpus[i], doing)
		return []use{one}, err
	})
	var read []gpu.Use
	for i, parts := range uses {
		switch {
		case errs[i] == nil:
			for _, use := range parts {
				read = append(read, use.Use)
				gpus[i].noted(use.UUID).note(use)
			}
			if len(parts) < len(gpus[i].parts) {
				u.soon()
			}
		default:
			// Its handle may be of a driver that was unloaded since.
			u.soon()
			errs[i] = fmt.Errorf("GPU %d: %w", gpus[i].gpu.Index, errs[i])
		}
	}
	slices.SortStableFunc(read, func(a, b gpu.Use) int { return cmp.Compare(a.Index, b.Index) })
	return read, errors.Join(errs...)
}

// soon has the GPUs looked for again before long.
func (u *Uses) soon() {
	if soon := time.Now().Add(lookSoon); soon.Before(u.next) {
		u.next = soon
	}
}

// noted is what of the GPU has that UUID.
func (c *usedGPU) noted(uuid string) *usedGPU {
	for _, part := range c.parts {
		if part.gpu.UUID == uuid {
			return part
		}
	}
	return c
}

// note keeps what the next reading uses.
func (c *usedGPU) note(read use) {
	c.since = max(c.since, read.since)
	switch {
	case !read.fresh:
	case read.idle:
		c.last, c.idleUntil = read.Use, time.Now().Add(idleAgain)
	default:
		c.idleUntil = time.Time{}
	}
}

// look finds the GPUs, unless they were found a short while ago.
func (u *Uses) look(ctx context.Context) error {
	if u.lib != nil && time.Now().Before(u.next) {
		return nil
	}
	if err := u.open(ctx); err != nil {
		return err
	}
	count, err := ask(ctx, u.system, "counting the GPUs", u.lib.DeviceGetCount)
	if err != nil {
		u.close(ctx)
		return unusable(err)
	}
	before := u.gpus
	u.gpus = make([]*usedGPU, count)
	var group sync.WaitGroup
	for i := range u.gpus {
		c := &usedGPU{cachedGPU: newGPU(useTimeout)}
		if i < len(before) {
			c = &usedGPU{cachedGPU: before[i].again(), since: before[i].since}
		}
		u.gpus[i] = c
		group.Go(func() {
			if c.failure = u.reader.find(ctx, c.cachedGPU, i); c.failure == nil && c.gpu.MIG.Enabled {
				c.failure = u.reader.readInstances(ctx, c.cachedGPU)
				c.cut()
			}
		})
	}
	group.Wait()
	numbered := make([]*cachedGPU, 0, count)
	for _, c := range u.gpus {
		numbered = append(numbered, c.cachedGPU)
	}
	number(numbered)
	u.next = time.Now().Add(lookAgain)
	return nil
}

// cut makes the parts of a GPU in MIG mode. What is used of each is read again.
func (c *usedGPU) cut() {
	c.parts = nil
	for _, i := range c.instances {
		if i.LeftOut == "" {
			part := &cachedGPU{Calls: c.Calls, handle: c.devices[i.UUID], gpu: gpu.GPU{UUID: i.UUID}}
			c.parts = append(c.parts, &usedGPU{cachedGPU: part, parent: c.gpu.UUID})
		}
	}
}

// readParts reads the instances of one GPU. Where nobody has a process on the GPU, they are not asked for theirs. One
// whose handle leads elsewhere by now is left out.
func (u *Uses) readParts(c *usedGPU, doing func(what string)) ([]use, error) {
	idle := false
	if u.tellsProcesses {
		doing("listing the processes")
		infos, ret := c.handle.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS && !untold(ret) {
			return nil, ret
		}
		idle = ret == nvml.SUCCESS && len(infos) == 0
	}
	var all []use
	for _, part := range c.parts {
		part.gpu.Index = c.gpu.Index
		if idle && time.Now().Before(part.idleUntil) {
			all = append(all, use{Use: part.last, idle: true})
			continue
		}
		read, err := u.read(part, doing)
		if vanished(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		doing("reading a MIG device's UUID")
		switch uuid, ret := part.handle.GetUUID(); {
		case vanished(ret) || ret == nvml.SUCCESS && uuid != part.gpu.UUID:
			continue
		case ret != nvml.SUCCESS:
			return nil, ret
		}
		all = append(all, read)
	}
	return all, nil
}

func (u *Uses) open(ctx context.Context) error {
	if u.lib != nil {
		return nil
	}
	lib, err := u.opener.Open(ctx)
	if err != nil {
		return err
	}
	u.lib, u.reader = lib, NewReader(lib, Options{})
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return lib.Extensions().LookupSymbol(name) == nil })
	}
	u.tellsProcesses = has("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses_v3")
	u.tellsMPS = has("nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
		"nvmlDeviceGetMPSComputeRunningProcesses_v3")
	u.tellsRates, u.tellsUtilization = has("nvmlDeviceGetUtilizationRates"), has("nvmlDeviceGetProcessUtilization")
	return nil
}

// close has the library initialised again by the next reading.
func (u *Uses) close(ctx context.Context) {
	if u.system.Hung() != nil || slices.ContainsFunc(u.gpus, func(c *usedGPU) bool { return c.Hung() != nil }) {
		return
	}
	// Whether it could be shut down makes no difference to what follows.
	_ = u.opener.Close(ctx, u.lib)
	u.lib = nil
}

// read reads one GPU. What a GPU or its driver does not tell is left empty.
func (u *Uses) read(c *usedGPU, doing func(what string)) (use, error) {
	read := use{Use: gpu.Use{Index: c.gpu.Index, UUID: c.gpu.UUID, Parent: c.parent}}
	var infos []nvml.ProcessInfo
	if u.tellsProcesses {
		var ret nvml.Return
		doing("listing the processes")
		infos, ret = c.handle.GetComputeRunningProcesses()
		if ret != nvml.SUCCESS && !untold(ret) {
			return use{}, ret
		}
		read.idle = ret == nvml.SUCCESS && len(infos) == 0
	}
	if read.idle && time.Now().Before(c.idleUntil) {
		read.UsedMiB, read.TotalMiB, read.SMPercent = c.last.UsedMiB, c.last.TotalMiB, c.last.SMPercent
		return read, nil
	}
	read.fresh = true
	if err := u.readLoad(c, &read.Use, doing); err != nil {
		return use{}, err
	}
	for _, info := range infos {
		read.Processes = append(read.Processes, gpu.Process{PID: int(info.Pid), MemoryMiB: memoryOf(info)})
	}
	slices.SortFunc(read.Processes, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	if len(read.Processes) == 0 {
		return read, nil
	}
	if err := u.readClients(c, &read.Use, doing); err != nil {
		return use{}, err
	}
	return read, u.readUtilization(c, &read, doing)
}

// readLoad reads what the whole GPU holds, and how busy it is.
func (u *Uses) readLoad(c *usedGPU, use *gpu.Use, doing func(what string)) error {
	doing("reading the memory")
	memory, ret := c.handle.GetMemoryInfo()
	switch {
	case ret == nvml.SUCCESS:
		use.UsedMiB, use.TotalMiB = int64(memory.Used>>20), int64(memory.Total>>20)
	case !unsupported(ret):
		return ret
	}
	if !u.tellsRates {
		return nil
	}
	doing("reading the utilization")
	rates, ret := c.handle.GetUtilizationRates()
	switch {
	case ret == nvml.SUCCESS:
		use.SMPercent = new(int(rates.Gpu))
	case !untold(ret):
		return ret
	}
	return nil
}

// untold reports whether the error only means that this is not told here, or not to us.
func untold(err error) bool { return unsupported(err) || errors.Is(err, nvml.ERROR_NO_PERMISSION) }

// memoryOf is the memory of a process; NVML says "not available" by all bits set.
func memoryOf(info nvml.ProcessInfo) int64 {
	if info.UsedGpuMemory == math.MaxUint64 {
		return gpu.UnknownMemory
	}
	return int64(info.UsedGpuMemory >> 20)
}

// readClients finds out which processes are clients of MPS. The driver lists those apart,
// and among all others.
func (u *Uses) readClients(c *usedGPU, use *gpu.Use, doing func(what string)) error {
	if !u.tellsMPS {
		return nil
	}
	doing("listing the clients of MPS")
	clients, ret := c.handle.GetMPSComputeRunningProcesses()
	if untold(ret) {
		return nil
	}
	if ret != nvml.SUCCESS {
		return ret
	}
	use.TellsMPS = true
	for i := range use.Processes {
		use.Processes[i].MPSClient = slices.ContainsFunc(clients, func(info nvml.ProcessInfo) bool {
			return int(info.Pid) == use.Processes[i].PID
		})
	}
	return nil
}

// readUtilization reads what part of the time each process had since the last reading. The
// driver takes samples several times a second, and keeps them for some seconds.
func (u *Uses) readUtilization(c *usedGPU, use *use, doing func(what string)) error {
	if !u.tellsUtilization {
		return nil
	}
	doing("reading the utilization of the processes")
	samples, ret := c.handle.GetProcessUtilization(c.since)
	switch {
	case ret == nvml.ERROR_NOT_FOUND:
		// None has computed anything since.
	case untold(ret):
		return nil
	case ret == nvml.ERROR_INSUFFICIENT_SIZE:
		// There is more than there was when the room for it was asked for: the next time.
		return nil
	case ret != nvml.SUCCESS:
		return ret
	}
	type sum struct{ percent, samples int }
	sums := map[int]sum{}
	for _, s := range samples {
		use.since = max(use.since, s.TimeStamp)
		of := sums[int(s.Pid)]
		sums[int(s.Pid)] = sum{of.percent + int(s.SmUtil), of.samples + 1}
	}
	for i := range use.Processes {
		of := sums[use.Processes[i].PID]
		use.Processes[i].SMPercent = new(of.percent / max(1, of.samples))
	}
	return nil
}
