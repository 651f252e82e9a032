// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/modes"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// lab is the GPU whose MIG mode may be changed. What the driver under test relies on is a check. What is only
// documented, or assumed, is told.
type lab struct {
	gpu.GPU
	partitions *gpunvml.Partitions
	// why nothing more can be tried; empty while it can.
	why string
	// off is what the driver tells that it can be cut into before its mode is switched, on what it tells then, and small
	// the smallest of that.
	off, on []gpu.Profile
	small   gpu.Profile
}

func (l *lab) needsMode() string { return l.why }

// profiles reads what the GPU can be cut into. It takes a new handle each time: none may outlive a change of the mode.
func (l *lab) profiles(s *step) []gpu.Profile {
	s.Helper()
	profiles, err := here.partitions().Profiles(s.Context(), l.UUID)
	s.must(err)
	return profiles
}

// handle is NVML's of a GPU. It may not outlive a change of its MIG mode.
func handle(s *step, uuid string) nvml.Device {
	s.Helper()
	device, ret := here.lib.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		s.Fatal(ret)
	}
	return device
}

// switchOn has the GPU in MIG mode. What it was in before is written down already.
func (l *lab) switchOn(s *step) {
	const what = "MIG mode is switched on"
	before, err := modes.MIG(s.Context(), here.lib, l.UUID)
	s.must(err)
	l.off = l.profiles(s)
	on, after, activation := gpu.MIGMode{Capable: true, Enabled: true, Pending: true}, before, nvml.SUCCESS
	s.clock()
	if !before.Enabled {
		activation, after, err = modes.SetMIG(s.Context(), here.lib, l.UUID, true)
		s.must(err)
	}
	observed := fmt.Sprintf("%s; activation status: %v", modes.Tell(after), activation)
	switch {
	case after.Enabled && activation == nvml.SUCCESS:
		l.why = ""
		s.check(what, modes.Tell(on), observed, true)
	case after.Pending && (activation == nvml.SUCCESS || activation == nvml.ERROR_RESET_REQUIRED):
		l.why = fmt.Sprintf("reset the GPU while MIG mode is on (nvidia-smi -i %s -mig 1, then --gpu-reset, or a reboot), "+
			"and run this again", l.UUID)
		s.row(what, modes.Tell(on), observed, report.NotRun)
	default:
		s.check(what, modes.Tell(on), observed+": end what has the GPU open, such as DCGM, and run this again", false)
	}
}

// cleared has a trial that leaves no instance.
func (l *lab) cleared(run func(*step)) func(*step) {
	return func(s *step) {
		s.Cleanup(func() {
			if err := modes.Clear(context.WithoutCancel(s.Context()), l.partitions, l.UUID); err != nil {
				s.Error(err)
			}
		})
		run(s)
	}
}

// describe is a profile in a line.
func describe(p gpu.Profile) string {
	k := p.Kind
	return fmt.Sprintf("%s, %d at most, %d MiB, %d SMs, engines CE %d DEC %d ENC %d JPEG %d OFA %d, at %v : %d", k.Profile,
		p.Count, k.MemoryMiB, k.SMCount, k.CopyEngines, k.Decoders, k.Encoders, k.JPEGs, k.OFAs, p.Starts, k.Size)
}

// tellProfiles tells what the driver tells with MIG on, beside what it told with MIG off.
func (l *lab) tellProfiles(s *step) {
	if l.on = l.profiles(s); len(l.on) == 0 {
		l.why = "the driver tells of no profile with a placement"
		s.Fatal(l.why)
	}
	l.small = slices.MinFunc(l.on, smaller)
	for i, p := range l.on {
		before := "none"
		if i < len(l.off) {
			before = describe(l.off[i])
		}
		s.seen(fmt.Sprintf("profile %d with MIG on", p.Kind.ProfileID), before, describe(p))
	}
}

// make makes an instance, call by call, so that each is measured.
func (l *lab) make(s *step, at gpu.Instance) gpu.Instance {
	s.Helper()
	s.clock()
	gi, err := l.partitions.MakeGPUInstance(s.Context(), l.UUID, at.PlaceOf())
	s.must(err)
	s.seen("GPU instance "+at.Place(), "", fmt.Sprintf("id %d", gi))
	s.clock()
	made, err := l.partitions.MakeComputeInstance(s.Context(), l.UUID, gi)
	s.must(err)
	s.check("its compute instance", "a UUID that begins with MIG-", fmt.Sprintf("%s, id %d", made.UUID, made.CI),
		strings.HasPrefix(made.UUID, "MIG-"))
	return made
}

// unmake destroys instances.
func (l *lab) unmake(s *step, all ...gpu.Instance) {
	s.Helper()
	for _, i := range all {
		s.clock()
		s.must(l.partitions.Destroy(s.Context(), l.UUID, i.GI))
		s.came("instance "+i.Place()+", idle", "is destroyed")
	}
}

// twice follows one instance step by step, and makes it again.
func (l *lab) twice(s *step) {
	place := l.small.At(slices.Max(l.small.Starts))
	made := l.make(s, place)
	instance, ret := handle(s, l.UUID).GetGpuInstanceById(made.GI)
	if ret == nvml.SUCCESS {
		ret = instance.Destroy()
	}
	s.same("it is destroyed with its compute instance in it", nvml.ERROR_IN_USE.Error(), ret.Error())
	l.unmake(s, made)
	left, err := l.partitions.Instances(s.Context(), l.UUID)
	s.must(err)
	s.same("instances that are left then", "", instances(left))
	again := l.make(s, place)
	s.check("the same place again: UUID", "not "+made.UUID, again.UUID, again.UUID != made.UUID)
	s.seen("the same place again: ids", made.InstanceID.String(), again.InstanceID.String())
}

// packed makes instances of all profiles, next to each other as far as there is room, and asks for a place that is
// taken.
func (l *lab) packed(s *step) {
	for _, places := range packings(l.on) {
		var all []gpu.Instance
		for _, at := range places {
			all = append(all, l.make(s, at))
		}
		taken := l.small.At(places[0].Start)
		_, err := l.partitions.MakeGPUInstance(s.Context(), l.UUID, taken.PlaceOf())
		s.check(fmt.Sprintf("a %s, where %s is", taken.Place(), places[0].Place()), gpu.ErrPlaceTaken.Error(),
			fmt.Sprint(err), errors.Is(err, gpu.ErrPlaceTaken))
		l.unmake(s, all...)
	}
}

// nodes are the device nodes with which a container can use the instance, and no other: that of the GPU, and those of
// its capabilities, whose numbers the kernel module shows (source: NVIDIA's MIG user guide).
func (l *lab) nodes(s *step, i gpu.Instance) []string {
	s.Helper()
	nodes := []string{fmt.Sprintf("/dev/nvidia%d", l.Minor)}
	of := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", l.Minor, i.GI)
	for _, dir := range []string{of, fmt.Sprintf("%s/ci%d", of, i.CI)} {
		content, err := os.ReadFile(filepath.Join(here.root(), dir, "access"))
		s.must(err)
		n := 0
		if _, err := fmt.Sscanf(string(content), "DeviceFileMinor: %d", &n); err != nil {
			s.Fatalf("%s shows no number: %q: %v", dir, content, err)
		}
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
	}
	slices.Sort(nodes)
	return nodes
}
