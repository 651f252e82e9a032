// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// readMIGMode reads whether the GPU is in MIG mode. It fails where that is not known: then nothing of
// the GPU may be handed out.
func (r *Reader) readMIGMode(ctx context.Context, c *cachedGPU) error {
	if !r.has("nvmlDeviceGetMigMode") {
		return nil
	}
	modes, err := ask(ctx, c.Calls, "reading the MIG mode", func() ([2]int, nvml.Return) {
		current, pending, ret := c.handle.GetMigMode()
		return [2]int{current, pending}, ret
	})
	switch {
	case unsupported(err):
		return nil
	case err != nil:
		return err
	}
	c.gpu.MIG = gpu.MIGMode{
		Capable: true, Enabled: modes[0] == nvml.DEVICE_MIG_ENABLE, Pending: modes[1] == nvml.DEVICE_MIG_ENABLE,
	}
	if !c.gpu.MIG.Enabled {
		c.told.migProfiles, c.handedOut = nil, nil
	}
	return nil
}

// maxProfiles ends the enumeration of profiles where a driver does not: there are eighteen.
const maxProfiles = 64

// migProfile is a kind of GPU instances that a GPU can be cut into.
type migProfile struct {
	nvml.GpuInstanceProfileInfo
	name     string
	graphics bool
	// compute are the kinds of compute instances in it; nil until an instance was seen.
	compute []nvml.ComputeInstanceProfileInfo
	// starts and size are where instances can lie, if Options.Profiles.
	starts []int
	size   int
}

// kind is what each instance of the profile is.
func (p *migProfile) kind() gpu.Instance {
	return gpu.Instance{InstanceID: gpu.InstanceID{GI: gpu.NoCI, CI: gpu.NoCI}, ProfileID: int(p.Id), Profile: p.name,
		Size: p.size, MemoryMiB: int64(p.MemorySizeMB), SMCount: int(p.MultiprocessorCount),
		CopyEngines: int(p.CopyEngineCount), Decoders: int(p.DecoderCount), Encoders: int(p.EncoderCount),
		JPEGs: int(p.JpegCount), OFAs: int(p.OfaCount), Graphics: p.graphics}
}

// profilesOf are what the GPU can be cut into, if that is read.
func (r *Reader) profilesOf(c *cachedGPU) []gpu.Profile {
	if !r.opts.Profiles {
		return nil
	}
	var profiles []gpu.Profile
	for _, p := range c.told.migProfiles {
		if len(p.starts) > 0 {
			profiles = append(profiles, gpu.Profile{Kind: p.kind(), Starts: p.starts, Count: int(p.InstanceCount)})
		}
	}
	return profiles
}

// readPlacements reads where instances of a profile can lie. All of them have one size.
func (r *Reader) readPlacements(ctx context.Context, c *cachedGPU, p *migProfile) error {
	placements, err := ask(ctx, c.Calls, "reading where a "+p.name+" can lie",
		func() ([]nvml.GpuInstancePlacement, nvml.Return) {
			return c.handle.GetGpuInstancePossiblePlacements(&p.GpuInstanceProfileInfo)
		})
	if unsupported(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, placement := range placements {
		p.starts, p.size = append(p.starts, int(placement.Start)), int(placement.Size)
	}
	slices.Sort(p.starts)
	return nil
}

// readInstances reads what a GPU in MIG mode is cut into: by the kinds of instances, since the list of MIG
// devices has only those instances that have compute instances. What goes away meanwhile is left out.
func (r *Reader) readInstances(ctx context.Context, c *cachedGPU) error {
	c.instances, c.devices = nil, map[string]nvml.Device{}
	for _, function := range []string{"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstances",
		"nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstances"} {
		if !r.has(function) {
			return fmt.Errorf("reading the MIG instances: %w: the library has no %s", nvml.ERROR_FUNCTION_NOT_FOUND, function)
		}
	}
	// They are the same for as long as the GPU is in MIG mode.
	if c.told.migProfiles == nil {
		profiles, err := r.readProfiles(ctx, c)
		if err != nil {
			return err
		}
		c.told.migProfiles = profiles
	}
	for _, p := range c.told.migProfiles {
		handles, err := ask(ctx, c.Calls, "listing the GPU instances "+p.name, func() ([]nvml.GpuInstance, nvml.Return) {
			return c.handle.GetGpuInstances(&p.GpuInstanceProfileInfo)
		})
		if unsupported(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, gi := range handles {
			instance, there, err := r.readInstance(ctx, c, p, gi)
			if err != nil {
				return err
			}
			if there {
				c.instances = append(c.instances, instance)
			}
		}
	}
	gpu.SortInstances(c.instances)
	c.handedOut = map[string]gpu.InstanceID{}
	for _, i := range c.instances {
		if i.LeftOut == "" {
			c.handedOut[i.UUID] = i.InstanceID
		}
	}
	return nil
}

// readProfiles reads into what kinds of instances the GPU can be cut. NVML numbers them from 0, with gaps, and
// calls the first number that it does not know an invalid argument.
func (r *Reader) readProfiles(ctx context.Context, c *cachedGPU) ([]*migProfile, error) {
	profiles := []*migProfile{}
	for i := range maxProfiles {
		info, err := ask(ctx, c.Calls, fmt.Sprintf("reading MIG profile %d", i),
			func() (nvml.GpuInstanceProfileInfo, nvml.Return) { return c.handle.GetGpuInstanceProfileInfo(i) })
		switch {
		case unsupported(err):
			continue
		case errors.Is(err, nvml.ERROR_INVALID_ARGUMENT):
			return profiles, nil
		case err != nil:
			return nil, err
		case info.InstanceCount == 0:
			continue
		}
		p := &migProfile{GpuInstanceProfileInfo: info}
		if err := r.nameProfile(ctx, c, i, p); err != nil {
			return nil, err
		}
		if r.opts.Profiles {
			if err := r.readPlacements(ctx, c, p); err != nil {
				return nil, err
			}
		}
		profiles = append(profiles, p)
	}
	return profiles, nil
}

// nameProfile takes the driver's own name of a profile, as nvidia-smi shows it. Drivers that do not tell it have one
// made of slices and memory, as their tools do.
func (r *Reader) nameProfile(ctx context.Context, c *cachedGPU, i int, p *migProfile) error {
	if r.has("nvmlDeviceGetGpuInstanceProfileInfoV") {
		of := c.handle.GetGpuInstanceProfileInfoV(i)
		v3, err := ask(ctx, c.Calls, "reading a MIG profile's name", of.V3)
		if err == nil {
			p.name, p.graphics = profileName(v3.Name[:]), v3.Capabilities&nvml.GPU_INSTANCE_PROFILE_CAPS_GFX != 0
			return nil
		}
		if gone(err) {
			return err
		}
		v2, err := ask(ctx, c.Calls, "reading a MIG profile's name", of.V2)
		if err == nil {
			p.name = profileName(v2.Name[:])
			p.graphics = strings.HasSuffix(p.name, "+gfx")
			return nil
		}
		if gone(err) {
			return err
		}
		klog.FromContext(ctx).V(4).Info("The driver does not tell the name of a MIG profile", "profile", i, "err", err)
	}
	named, err := r.devices.NewMigProfile(i, nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE,
		nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, p.MemorySizeMB, uint64(c.gpu.MemoryMiB)<<20)
	if err != nil {
		// Newer than the driver's tools of that time.
		p.name = fmt.Sprintf("profile-%d", p.Id)
		return nil
	}
	info := named.GetInfo()
	info.C = int(p.SliceCount)
	info.G = int(p.SliceCount)
	p.name = info.String()
	return nil
}

// profileName is a name such as "MIG 1g.10gb+me" without what is the same of all.
func profileName(name []int8) string {
	var b strings.Builder
	for _, c := range name {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return strings.TrimPrefix(b.String(), "MIG ")
}

// vanished reports whether the error means that the instance is not there any more. A handle to one that is gone
// is an invalid argument.
func vanished(err error) bool {
	return errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) || errors.Is(err, nvml.ERROR_NOT_FOUND)
}

// readInstance reads one GPU instance. An error is one of the GPU.
func (r *Reader) readInstance(ctx context.Context, c *cachedGPU, p *migProfile, gi nvml.GpuInstance) (
	instance gpu.Instance, there bool, err error) {
	info, err := ask(ctx, c.Calls, "reading where a GPU instance is", gi.GetInfo)
	if vanished(err) {
		return instance, false, nil
	}
	if err != nil {
		return instance, false, err
	}
	instance = p.kind()
	instance.GI, instance.Start, instance.Size = int(info.Id), int(info.Placement.Start), int(info.Placement.Size)
	devices, err := r.computeInstances(ctx, c, p, gi)
	switch {
	case vanished(err):
		return instance, false, nil
	case gone(err):
		return instance, false, err
	case err != nil:
		instance.LeftOut = fmt.Sprintf("its compute instances cannot be read: %v", err)
	case len(devices) == 0:
		instance.LeftOut = fmt.Sprintf("it has no compute instance: make one (nvidia-smi mig -i %s -gi %d -cci), or destroy "+
			"it (nvidia-smi mig -i %s -gi %d -dgi)", c.gpu.PCIBusID, instance.GI, c.gpu.PCIBusID, instance.GI)
	case len(devices) > 1:
		instance.Recut = true
		instance.LeftOut = fmt.Sprintf("it has %d compute instances, which share its memory and its faults: give it one "+
			"that is as large as itself", len(devices))
	case devices[0].slices != int(p.SliceCount):
		instance.Recut = true
		instance.LeftOut = fmt.Sprintf("its compute instance has %d of its %d slices: give it one that is as large as itself",
			devices[0].slices, p.SliceCount)
	default:
		return r.readDevice(ctx, c, devices[0], instance)
	}
	return instance, true, nil
}

// computeInstance is one that was found.
type computeInstance struct {
	nvml.ComputeInstance
	slices int
}

// computeInstances are all of a GPU instance's.
func (r *Reader) computeInstances(ctx context.Context, c *cachedGPU, p *migProfile, gi nvml.GpuInstance) (
	[]computeInstance, error) {
	if p.compute == nil {
		kinds := []nvml.ComputeInstanceProfileInfo{}
		for i := range maxProfiles {
			info, err := ask(ctx, c.Calls, fmt.Sprintf("reading compute instance profile %d of %s", i, p.name),
				func() (nvml.ComputeInstanceProfileInfo, nvml.Return) {
					return gi.GetComputeInstanceProfileInfo(i, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
				})
			if unsupported(err) {
				continue
			}
			if errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) {
				// It ends the enumeration, unless the instance is gone: that is the same error.
				if _, err := ask(ctx, c.Calls, "looking for a GPU instance again", gi.GetInfo); err != nil {
					return nil, err
				}
				break
			}
			if err != nil {
				return nil, err
			}
			if info.InstanceCount > 0 {
				kinds = append(kinds, info)
			}
		}
		p.compute = kinds
	}
	var found []computeInstance
	for _, kind := range p.compute {
		handles, err := ask(ctx, c.Calls, "listing the compute instances of a "+p.name,
			func() ([]nvml.ComputeInstance, nvml.Return) { return gi.GetComputeInstances(&kind) })
		if unsupported(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, handle := range handles {
			found = append(found, computeInstance{handle, int(kind.SliceCount)})
		}
	}
	return found, nil
}

// readDevice reads what is told of the MIG device of a compute instance.
func (r *Reader) readDevice(ctx context.Context, c *cachedGPU, ci computeInstance, instance gpu.Instance) (
	_ gpu.Instance, there bool, err error) {
	leaveOut := func(err error) (gpu.Instance, bool, error) {
		switch {
		case vanished(err):
			return instance, false, nil
		case gone(err):
			return instance, false, err
		}
		instance.CI, instance.UUID, instance.LeftOut = gpu.NoCI, "", fmt.Sprintf("its MIG device cannot be read: %v", err)
		return instance, true, nil
	}
	info, err := ask(ctx, c.Calls, "reading a compute instance", ci.GetInfo)
	if err != nil {
		return leaveOut(err)
	}
	uuid, err := ask(ctx, c.Calls, "reading a MIG device's UUID", info.Device.GetUUID)
	if err != nil {
		return leaveOut(err)
	}
	instance.CI, instance.UUID = int(info.Id), uuid
	c.devices[uuid] = info.Device
	if !r.has("nvmlDeviceGetAttributes") && !r.has("nvmlDeviceGetAttributes_v2") {
		return instance, true, nil
	}
	attributes, err := ask(ctx, c.Calls, "reading a MIG device's attributes", info.Device.GetAttributes)
	switch {
	case err == nil:
		instance.MemoryMiB = int64(attributes.MemorySizeMB)
	case !unsupported(err):
		return leaveOut(err)
	}
	return instance, true, nil
}
