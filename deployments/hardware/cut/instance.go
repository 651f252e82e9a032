// SPDX-License-Identifier: Apache-2.0

package cut

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// instance is one that was made call by call, so that each call is measured and its result seen.
type instance struct {
	at      place
	gi      nvml.GpuInstance
	id      int
	compute nvml.ComputeInstance
	ci      int // gpu.NoCI before there is one
	uuid    string
	// times are those of its calls, as people read them; took is the sum.
	times string
	took  time.Duration
}

func (i *instance) measured(what string, took time.Duration) {
	if i.times != "" {
		i.times += ", "
	}
	i.times += fmt.Sprintf("%s %.2f s", what, took.Seconds())
	i.took += took
}

// makeGPUInstance makes it without a compute instance.
func (g *GPU) makeGPUInstance(ctx context.Context, at place) (*instance, error) {
	device, err := g.device(ctx)
	if err != nil {
		return nil, err
	}
	info, _, err := call(ctx, g, "reading profile "+at.profile.Name, func() (nvml.GpuInstanceProfileInfo, nvml.Return) {
		return device.GetGpuInstanceProfileInfo(at.profile.Enum)
	})
	if err != nil {
		return nil, err
	}
	placement := nvml.GpuInstancePlacement{Start: uint32(at.start), Size: uint32(at.profile.Size)}
	made, took, err := call(ctx, g, "making "+at.String(), func() (nvml.GpuInstance, nvml.Return) {
		return device.CreateGpuInstanceWithPlacement(&info, &placement)
	})
	if err != nil {
		return nil, err
	}
	i := &instance{at: at, gi: made, ci: gpu.NoCI}
	i.measured("made", took)
	told, _, err := call(ctx, g, "reading "+at.String(), made.GetInfo)
	i.id = int(told.Id)
	return i, err
}

// maxComputeProfiles ends an enumeration that a driver does not end.
const maxComputeProfiles = 64

// makeComputeInstance makes the one that is as large as the GPU instance, of the lowest profile that is: not every
// model takes the other one.
func (g *GPU) makeComputeInstance(ctx context.Context, i *instance) error {
	profile, err := g.computeProfile(ctx, i)
	if err != nil {
		return err
	}
	made, took, err := call(ctx, g, "making the compute instance of "+i.at.String(),
		func() (nvml.ComputeInstance, nvml.Return) { return i.gi.CreateComputeInstance(&profile) })
	if err != nil {
		return err
	}
	i.compute = made
	i.measured("compute instance made", took)
	told, _, err := call(ctx, g, "reading the compute instance of "+i.at.String(), made.GetInfo)
	if err != nil {
		return err
	}
	i.ci = int(told.Id)
	i.uuid, _, err = call(ctx, g, "reading the UUID of "+i.at.String(), told.Device.GetUUID)
	return err
}

func (g *GPU) computeProfile(ctx context.Context, i *instance) (nvml.ComputeInstanceProfileInfo, error) {
	for n := range maxComputeProfiles {
		info, _, err := call(ctx, g, fmt.Sprintf("reading compute instance profile %d of %s", n, i.at),
			func() (nvml.ComputeInstanceProfileInfo, nvml.Return) {
				return i.gi.GetComputeInstanceProfileInfo(n, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
			})
		switch {
		case errors.Is(err, nvml.ERROR_NOT_SUPPORTED):
			continue
		case err != nil:
			return nvml.ComputeInstanceProfileInfo{}, err
		case int(info.SliceCount) == i.at.profile.Slices:
			return info, nil
		}
	}
	return nvml.ComputeInstanceProfileInfo{}, fmt.Errorf("%s takes no compute instance as large as itself", i.at)
}

// make makes both.
func (g *GPU) make(ctx context.Context, at place) (*instance, error) {
	i, err := g.makeGPUInstance(ctx, at)
	if err != nil {
		return nil, err
	}
	return i, g.makeComputeInstance(ctx, i)
}

// destroyPart destroys a compute instance, or a GPU instance.
func (g *GPU) destroyPart(ctx context.Context, what string, do func() nvml.Return) (time.Duration, error) {
	_, took, err := call(ctx, g, what, func() (struct{}, nvml.Return) { return struct{}{}, do() })
	return took, err
}

// unmake destroys the compute instance, if it has one, and the GPU instance.
func (g *GPU) unmake(ctx context.Context, i *instance) error {
	if i.ci != gpu.NoCI {
		took, err := g.destroyPart(ctx, "destroying the compute instance of "+i.at.String(), i.compute.Destroy)
		if err != nil {
			return err
		}
		i.ci = gpu.NoCI
		i.measured("compute instance destroyed", took)
	}
	took, err := g.destroyPart(ctx, "destroying "+i.at.String(), i.gi.Destroy)
	i.measured("destroyed", took)
	return err
}

// walked is how many MIG devices NVML lists.
func (g *GPU) walked(ctx context.Context) (int, error) {
	device, err := g.device(ctx)
	if err != nil {
		return 0, err
	}
	n, _, err := call(ctx, g, "listing the MIG devices", func() (int, nvml.Return) {
		most, ret := device.GetMaxMigDeviceCount()
		found := 0
		for at := range most {
			if _, ret := device.GetMigDeviceHandleByIndex(at); ret == nvml.SUCCESS {
				found++
			}
		}
		return found, ret
	})
	return n, err
}
