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
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// lab is the GPU whose MIG mode may be changed. What the driver under test relies on is a check. What is only
// documented, or assumed, is a check where it is so, and only told where it is not.
type lab struct {
	gpu.GPU
	partitions *gpunvml.Partitions
	// why nothing more can be tried; empty while it can.
	why string
	// off is what the driver tells that it can be cut into before its mode is switched, and double what the test double
	// tells of the GPU that is most like this one.
	off    []gpu.Profile
	double []sim.MIGProfile
	// on is what it tells then, and small the smallest of it.
	on    []gpu.Profile
	small gpu.Profile
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

// compareProfiles compares what the driver tells with MIG on with what it told with MIG off, but for names: with MIG
// off it may tell none.
func (l *lab) compareProfiles(s *step) {
	l.on = l.profiles(s)
	if len(l.on) == 0 {
		l.why = "the driver tells of no profile with a placement"
		s.Fatal(l.why)
	}
	l.double, l.small = sim.MIGTable(nearest(l.on)), slices.MinFunc(l.on, smaller)
	differ := "the same"
	for i, p := range l.on {
		named := p
		if i < len(l.off) {
			named.Kind.Profile = l.off[i].Kind.Profile
		}
		if i >= len(l.off) || describe(l.off[i]) != describe(named) {
			differ = fmt.Sprintf("number %d is %s", i, describe(p))
			break
		}
	}
	s.compare("profiles and placements with MIG on", fmt.Sprintf("%d, the same", len(l.off)),
		fmt.Sprintf("%d, %s", len(l.on), differ))
}

// begin makes a GPU instance without a compute instance.
func (l *lab) begin(s *step, at gpu.Instance) (gpu.Instance, error) {
	var err error
	at.GI, err = l.partitions.MakeGPUInstance(s.Context(), l.UUID, at.PlaceOf())
	return at, err
}

// make makes an instance, call by call, so that each is measured, and compares the id of the GPU instance with that of
// the double.
func (l *lab) make(s *step, at gpu.Instance) gpu.Instance {
	s.Helper()
	s.clock()
	begun, err := l.begin(s, at)
	s.must(err)
	l.seenID(s, begun)
	return l.finish(s, begun)
}

// finish makes the compute instance.
func (l *lab) finish(s *step, begun gpu.Instance) gpu.Instance {
	s.Helper()
	s.clock()
	made, err := l.partitions.MakeComputeInstance(s.Context(), l.UUID, begun.GI)
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

// seenID has the id of a GPU instance, beside that of the double.
func (l *lab) seenID(s *step, i gpu.Instance) {
	s.Helper()
	expected := ""
	for _, p := range l.double {
		if n := slices.Index(p.Starts, i.Start); p.Kind.ProfileID == i.ProfileID && n >= 0 {
			expected = fmt.Sprintf("id %d", p.GIs[n])
		}
	}
	s.compare("GPU instance "+i.Place(), expected, fmt.Sprintf("id %d", i.GI))
}

// twice follows one instance step by step, and makes it again.
func (l *lab) twice(s *step) {
	place := l.small.At(slices.Max(l.small.Starts))
	s.clock()
	begun, err := l.begin(s, place)
	s.must(err)
	l.seenID(s, begun)
	l.listed(s, "MIG devices that NVML lists while it has no compute instance", 0)
	made := l.finish(s, begun)
	l.listed(s, "MIG devices that NVML lists then", 1)
	l.capabilities(s, made)
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
	s.compare("the same place again: ids", made.InstanceID.String(), again.InstanceID.String())
}

func (l *lab) listed(s *step, what string, want int) {
	s.Helper()
	device, found := handle(s, l.UUID), 0
	most, ret := device.GetMaxMigDeviceCount()
	for at := range most {
		if _, ret := device.GetMigDeviceHandleByIndex(at); ret == nvml.SUCCESS {
			found++
		}
	}
	s.check(what, fmt.Sprint(want), fmt.Sprint(found), found == want && ret == nvml.SUCCESS)
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
		_, err := l.begin(s, taken)
		s.check(fmt.Sprintf("a %s, where %s is", taken.Place(), places[0].Place()), gpu.ErrPlaceTaken.Error(),
			fmt.Sprint(err), errors.Is(err, gpu.ErrPlaceTaken))
		l.unmake(s, all...)
	}
}

// minor is what the kernel module shows of an instance that is there: the number of the capability of the GPU instance,
// where ci is gpu.NoCI, or of its compute instance. The line is that of mig-minors.
func (l *lab) minor(gi, ci int) (n int, line string, err error) {
	part := fmt.Sprintf("gi%d/access", gi)
	if ci != gpu.NoCI {
		part = fmt.Sprintf("gi%d/ci%d/access", gi, ci)
	}
	of := fmt.Sprintf("gpu%d", l.Minor)
	content, err := os.ReadFile(filepath.Join(here.root(), "proc/driver/nvidia/capabilities", of, "mig", part))
	for shown := range strings.Lines(string(content)) {
		if _, scanned := fmt.Sscanf(shown, "DeviceFileMinor: %d", &n); scanned == nil {
			return n, fmt.Sprintf("%s/%s %d", of, part, n), nil
		}
	}
	return 0, "", fmt.Errorf("the kernel module shows no minor number of %s/%s: %q: %w", of, part, content, err)
}

// nodes are the device nodes with which a container can use the instance, and no other: that of the GPU, and those of
// its capabilities (source: NVIDIA's MIG user guide).
func (l *lab) nodes(s *step, i gpu.Instance) []string {
	s.Helper()
	nodes := []string{fmt.Sprintf("/dev/nvidia%d", l.Minor)}
	for _, ci := range []int{gpu.NoCI, i.CI} {
		n, _, err := l.minor(i.GI, ci)
		s.must(err)
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
	}
	slices.Sort(nodes)
	return nodes
}

// capabilities compares what the kernel module shows of an instance with its table, and looks for the device nodes,
// which nvidia-modprobe makes.
func (l *lab) capabilities(s *step, i gpu.Instance) {
	s.Helper()
	table, err := os.ReadFile(filepath.Join(here.root(), "proc/driver/nvidia-caps/mig-minors"))
	s.must(err)
	for _, ci := range []int{gpu.NoCI, i.CI} {
		_, line, err := l.minor(i.GI, ci)
		s.check("capability of "+gpu.InstanceID{GI: i.GI, CI: ci}.String(), "a line of mig-minors", told(line, err),
			err == nil && slices.Contains(strings.Split(string(table), "\n"), line))
	}
	for _, node := range l.nodes(s, i) {
		if _, err := os.Stat(filepath.Join(here.root(), node)); err != nil {
			node += " is not there"
		}
		s.seen("device node on the machine", "", node)
	}
}
