// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// partitionTimeout is how long it may take to make or destroy an instance: others have seen 1.5 s, and up to ten where
// several GPUs were cut at once.
const partitionTimeout = 30 * time.Second

// Partitions makes and destroys instances of GPUs in MIG mode, whose mode it never changes. It initialises the library
// for itself, once, and may be used by several goroutines: one GPU is changed by one of them at a time.
type Partitions struct {
	opener *Opener

	mu     sync.Mutex
	reader *Reader
	lib    nvml.Interface
	// cached are in NVML's order. Those whose UUIDs were read are in gpus.
	cached []*cachedGPU
	gpus   map[string]*partitionedGPU
}

// partitionedGPU is a GPU on which instances are made. Whoever has its turn may use GPU.
type partitionedGPU struct {
	turn chan struct{}
	gpu  *cachedGPU
}

// NewPartitions returns Partitions of the driver that the options name. Nothing is opened before it is used.
func NewPartitions(opts OpenOptions) *Partitions {
	return &Partitions{opener: NewOpener(opts), gpus: map[string]*partitionedGPU{}}
}

// Instances are those that the GPU with the UUID is cut into now, whoever has made them. A GPU that is lost, or not
// there any more, has none: they do not survive that. That another one is lost is no error here.
func (p *Partitions) Instances(ctx context.Context, uuid string) (instances []gpu.Instance, err error) {
	err = p.with(ctx, uuid, func(c *cachedGPU) error {
		instances, err = p.instances(ctx, c)
		return err
	})
	if errors.Is(err, nvml.ERROR_GPU_IS_LOST) || errors.Is(err, nvml.ERROR_NOT_FOUND) {
		return nil, nil
	}
	return instances, err
}

// Profiles are what the GPU with the UUID can be cut into, also while it is not in MIG mode.
func (p *Partitions) Profiles(ctx context.Context, uuid string) (profiles []gpu.Profile, err error) {
	err = p.with(ctx, uuid, func(c *cachedGPU) error {
		// The names of profiles are made of it where the driver does not tell them, as with MIG mode off.
		if err := p.reader.fillMemory(ctx, c); err != nil {
			return err
		}
		if c.told.migProfiles, err = p.reader.readProfiles(ctx, c); err != nil {
			return err
		}
		profiles = p.reader.profilesOf(c)
		return nil
	})
	return profiles, err
}

// MakeGPUInstance makes a GPU instance in a place, and returns its id. It is gpu.ErrPlaceTaken, and nothing was made,
// where another instance is in the way. After any other error it may have been made.
func (p *Partitions) MakeGPUInstance(ctx context.Context, uuid string, at gpu.Place) (gi int, err error) {
	err = p.with(ctx, uuid, func(c *cachedGPU) error {
		if _, err := p.instances(ctx, c); err != nil {
			return err
		}
		profile, err := c.profile(at.ProfileID)
		if err != nil {
			return err
		}
		placement := nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)}
		made, err := change(ctx, c, "making a GPU instance "+profile.name, func() (nvml.GpuInstance, nvml.Return) {
			return c.handle.CreateGpuInstanceWithPlacement(&profile.GpuInstanceProfileInfo, &placement)
		})
		if errors.Is(err, nvml.ERROR_INSUFFICIENT_RESOURCES) {
			return fmt.Errorf("%w: %w", gpu.ErrPlaceTaken, err)
		}
		if err != nil {
			return err
		}
		info, err := ask(ctx, c.Calls, "reading the GPU instance that was made", made.GetInfo)
		gi = int(info.Id)
		return err
	})
	return gi, err
}

// MakeComputeInstance makes the compute instance of a GPU instance that has none, as large as itself, and returns what
// a container can be given.
func (p *Partitions) MakeComputeInstance(ctx context.Context, uuid string, gi int) (made gpu.Instance, err error) {
	err = p.with(ctx, uuid, func(c *cachedGPU) error {
		handle, profile, err := p.gpuInstance(ctx, c, gi)
		if err != nil {
			return err
		}
		// It fills in profile.compute.
		if _, err := p.reader.computeInstances(ctx, c, profile, handle); err != nil {
			return err
		}
		// The lowest that fits: a GPU instance of 7 slices has two kinds of this size, and not each model takes the second.
		at := slices.IndexFunc(profile.compute, func(kind nvml.ComputeInstanceProfileInfo) bool {
			return kind.SliceCount == profile.SliceCount
		})
		if at < 0 {
			return fmt.Errorf("a GPU instance %s takes no compute instance as large as itself", profile.name)
		}
		if _, err := change(ctx, c, "making a compute instance in a "+profile.name,
			func() (nvml.ComputeInstance,
				nvml.Return) {
				return handle.CreateComputeInstance(&profile.compute[at])
			}); err != nil {
			return err
		}
		instances, err := p.instances(ctx, c)
		if err != nil {
			return err
		}
		at = slices.IndexFunc(instances, func(i gpu.Instance) bool { return i.GI == gi })
		if at < 0 || instances[at].LeftOut != "" {
			return fmt.Errorf("GPU instance %d was made and cannot be used: %+v", gi, instances)
		}
		made = instances[at]
		return nil
	})
	return made, err
}

// Destroy destroys a GPU instance with its compute instances, and looks whether it is gone. It is gpu.ErrInstanceInUse
// where a program has it open, which may be a monitor's. That it is not there is no error.
func (p *Partitions) Destroy(ctx context.Context, uuid string, gi int) error {
	return p.with(ctx, uuid, func(c *cachedGPU) error {
		handle, profile, err := p.gpuInstance(ctx, c, gi)
		if errors.Is(err, errNoSuchInstance) {
			return nil
		}
		if err != nil {
			return err
		}
		compute, err := p.reader.computeInstances(ctx, c, profile, handle)
		if err != nil {
			return err
		}
		for _, ci := range compute {
			if err := destroy(ctx, c, "destroying a compute instance", ci.Destroy); err != nil {
				return err
			}
		}
		if err := destroy(ctx, c, "destroying a GPU instance "+profile.name, handle.Destroy); err != nil {
			return err
		}
		// Drivers have said that it is gone while it was not (github.com/NVIDIA/go-nvml issue 146).
		if _, _, err := p.gpuInstance(ctx, c, gi); !errors.Is(err, errNoSuchInstance) {
			return errors.Join(fmt.Errorf("GPU instance %d is still there, although the driver said that it is "+
				"destroyed", gi), err)
		}
		return nil
	})
}

func destroy(ctx context.Context, c *cachedGPU, what string, call func() nvml.Return) error {
	_, err := change(ctx, c, what, func() (struct{}, nvml.Return) { return struct{}{}, call() })
	if errors.Is(err, nvml.ERROR_IN_USE) {
		return fmt.Errorf("%w: %w", gpu.ErrInstanceInUse, err)
	}
	if vanished(err) {
		return nil
	}
	return err
}

func change[T any](ctx context.Context, c *cachedGPU, what string, call func() (T, nvml.Return)) (T, error) {
	return askWithin(ctx, c.Calls, partitionTimeout, what, call)
}

// with calls do with the GPU, when nobody else changes it.
func (p *Partitions) with(ctx context.Context, uuid string, do func(c *cachedGPU) error) error {
	g, err := p.gpu(ctx, uuid)
	if err != nil {
		return err
	}
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait until GPU %s is cut for others: %w", uuid, context.Cause(ctx))
	}
	if err := do(g.gpu); err != nil {
		return fmt.Errorf("GPU %s: %w", uuid, err)
	}
	return nil
}

func (p *Partitions) gpu(ctx context.Context, uuid string) (*partitionedGPU, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lib == nil {
		lib, err := p.opener.Open(ctx)
		if err != nil {
			return nil, err
		}
		p.lib, p.reader = lib, NewReader(lib, Options{Profiles: true})
	}
	if g := p.gpus[uuid]; g != nil {
		return g, nil
	}
	if err := p.find(ctx); err != nil {
		return nil, fmt.Errorf("opening GPU %s: %w", uuid, err)
	}
	if g := p.gpus[uuid]; g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("opening GPU %s: %w", uuid, p.missing())
}

// find finds those GPUs that were not found yet, side by side: nvmlDeviceGetHandleByUUID finds none while any GPU of
// the node is lost, or hangs.
func (p *Partitions) find(ctx context.Context) error {
	count, err := ask(ctx, p.reader.system, "counting the GPUs", p.lib.DeviceGetCount)
	if err != nil {
		return err
	}
	for len(p.cached) < count {
		p.cached = append(p.cached, newGPU(0))
	}
	var sought []*cachedGPU
	var group sync.WaitGroup
	for i, c := range p.cached {
		if c.gpu.UUID == "" {
			sought = append(sought, c)
			group.Go(func() { c.failure = p.reader.find(ctx, c, i) })
		}
	}
	group.Wait()
	for _, c := range sought {
		if c.gpu.UUID != "" {
			p.gpus[c.gpu.UUID] = &partitionedGPU{make(chan struct{}, 1), c}
		}
	}
	return nil
}

// missing is why a GPU was not found. It may be any of those that did not tell their UUIDs, so it is known to be lost,
// or not there, only where all of these are lost.
func (p *Partitions) missing() error {
	why := error(nvml.ERROR_NOT_FOUND)
	for _, c := range p.cached {
		switch {
		case c.gpu.UUID != "":
		case errors.Is(c.failure, nvml.ERROR_GPU_IS_LOST):
			why = c.failure
		default:
			return c.failure
		}
	}
	return why
}

// instances reads the GPU again; none where it is not in MIG mode.
func (p *Partitions) instances(ctx context.Context, c *cachedGPU) ([]gpu.Instance, error) {
	if err := p.reader.readMIGMode(ctx, c); err != nil {
		return nil, err
	}
	if !c.gpu.MIG.Enabled {
		return nil, nil
	}
	if err := p.reader.readInstances(ctx, c); err != nil {
		return nil, err
	}
	return c.instances, nil
}

// profile is that of the id, as the instances were read last.
func (c *cachedGPU) profile(id int) (*migProfile, error) {
	at := slices.IndexFunc(c.told.migProfiles, func(p *migProfile) bool { return int(p.Id) == id })
	if at < 0 {
		return nil, fmt.Errorf("it cannot be cut into instances of MIG profile %d, or is not in MIG mode", id)
	}
	return c.told.migProfiles[at], nil
}

var errNoSuchInstance = errors.New("there is no such GPU instance")

// gpuInstance is the handle of a GPU instance, which is good until anything is destroyed, and its profile.
func (p *Partitions) gpuInstance(ctx context.Context, c *cachedGPU, gi int) (nvml.GpuInstance, *migProfile, error) {
	instances, err := p.instances(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	at := slices.IndexFunc(instances, func(i gpu.Instance) bool { return i.GI == gi })
	if at < 0 {
		return nil, nil, fmt.Errorf("%w: %d", errNoSuchInstance, gi)
	}
	profile, err := c.profile(instances[at].ProfileID)
	if err != nil {
		return nil, nil, err
	}
	handle, err := ask(ctx, c.Calls, "opening a GPU instance", func() (nvml.GpuInstance, nvml.Return) {
		return c.handle.GetGpuInstanceById(gi)
	})
	return handle, profile, err
}
