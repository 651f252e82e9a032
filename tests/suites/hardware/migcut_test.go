// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/migmode"
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
	// record is the file that says what is to be put back.
	record string
	// root has proc and dev, which the kernel module shows capabilities in.
	root string
	// why nothing more can be tried; empty while it can.
	why string
	// off is what the driver tells that it can be cut into before its mode is switched, and double what the test double
	// tells of the GPU that is most like this one.
	off, double []sim.MIGProfile
	plan        migPlan
}

func newLab(asked string) (*lab, error) {
	l := &lab{partitions: gpunvml.NewPartitions(gpunvml.OpenOptions{LibraryPath: here.driver.NVML}),
		root: cmp.Or(here.simulated, "/"), record: os.Getenv("GPUSHARE_MIG_RECORD"), why: "MIG mode is not on"}
	if l.record == "" {
		return nil, errors.New("GPUSHARE_MIG_RECORD names no file for what is to be put back")
	}
	if err := migmode.Has(here.lib); err != nil {
		return nil, err
	}
	var err error
	l.GPU, err = migmode.Choose(asked, here.machine)
	return l, err
}

func (l *lab) needsMode() string { return l.why }

func (l *lab) profiles(s *step) []sim.MIGProfile {
	s.Helper()
	device, ret := here.lib.DeviceGetHandleByUUID(l.UUID)
	if ret != nvml.SUCCESS {
		s.Fatal(ret)
	}
	profiles, _, _ := profilesOf(here.lib, device, "")
	for i := range profiles {
		profiles[i].Name = strings.TrimPrefix(profiles[i].Name, "MIG ")
	}
	return profiles
}

// switchOn has the GPU in MIG mode. What it was in before is written down first.
func (l *lab) switchOn(s *step) {
	const what = "MIG mode is switched on"
	before, err := migmode.Read(s.Context(), here.lib, l.UUID)
	if err != nil {
		s.Fatal(err)
	}
	l.off = l.profiles(s)
	record := migmode.Record{Library: here.driver.NVML, UUID: l.UUID, On: before.Now}
	if err := record.Write(l.record); err != nil {
		s.Fatal(err)
	}
	on, observed, after, activation := migmode.Mode{Now: true, Pending: true}, "it was on", before, nvml.SUCCESS
	s.clock()
	if !before.Now {
		if activation, after, err = migmode.Set(s.Context(), here.lib, l.UUID, true); err != nil {
			s.Fatal(err)
		}
		observed = fmt.Sprintf("%s; activation status: %v", after, activation)
	}
	switch {
	case after.Now && activation == nvml.SUCCESS:
		l.why = ""
		s.check(what, on.String(), observed, true)
	case after.Pending && (activation == nvml.SUCCESS || activation == nvml.ERROR_RESET_REQUIRED):
		l.why = fmt.Sprintf("reset the GPU while MIG mode is on (nvidia-smi -i %s -mig 1, then --gpu-reset, or a reboot), "+
			"and run this again", l.UUID)
		s.row(what, on.String(), observed, report.NotRun)
	default:
		s.check(what, on.String(), observed+": end what has the GPU open, such as DCGM, and run this again", false)
	}
}

// cleared has a trial that leaves no instance.
func (l *lab) cleared(run func(*step)) func(*step) {
	return func(s *step) {
		s.Cleanup(func() {
			if err := migmode.Clear(context.WithoutCancel(s.Context()), l.partitions, l.UUID); err != nil {
				s.Error(err)
			}
		})
		run(s)
	}
}

// compareProfiles compares what the driver tells with MIG on with what it told with MIG off, but for names: with MIG
// off it may tell none.
func (l *lab) compareProfiles(s *step) {
	on := l.profiles(s)
	var err error
	if l.plan, err = newMIGPlan(on); err != nil {
		l.why = err.Error()
		s.Fatal(err)
	}
	l.double = sim.MIGTable(nearest(on))
	unnamed := func(profiles []sim.MIGProfile) (all []string) {
		for _, p := range profiles {
			p.Name = ""
			all = append(all, describe(p))
		}
		return all
	}
	differ := "the same"
	off := unnamed(l.off)
	for i, p := range unnamed(on) {
		if i >= len(off) || off[i] != p {
			differ = fmt.Sprintf("number %d is %s", i, p)
			break
		}
	}
	s.compare("profiles and placements with MIG on", fmt.Sprintf("%d, the same", len(off)),
		fmt.Sprintf("%d, %s", len(on), differ))
}

// cut is an instance that was made call by call, so that each is measured.
type cut struct {
	at place
	gi int
	gpu.Instance
	times string
	took  time.Duration
}

func (c *cut) measured(what string, began time.Time) {
	took := time.Since(began)
	c.times += fmt.Sprintf("%s %.2f s ", what, took.Seconds())
	c.took += took
}

// begin makes a GPU instance without a compute instance.
func (l *lab) begin(s *step, at place) (*cut, error) {
	c, began := &cut{at: at}, time.Now()
	var err error
	c.gi, err = l.partitions.MakeGPUInstance(s.Context(), l.UUID,
		gpu.Place{ProfileID: at.profile.ID, Start: at.start, Size: at.profile.Size})
	c.measured("made", began)
	return c, err
}

// finish makes its compute instance.
func (l *lab) finish(s *step, c *cut) {
	s.Helper()
	began := time.Now()
	var err error
	if c.Instance, err = l.partitions.MakeComputeInstance(s.Context(), l.UUID, c.gi); err != nil {
		s.Fatal(err)
	}
	c.measured("compute instance made", began)
}

func (l *lab) make(s *step, at place) *cut {
	s.Helper()
	c, err := l.begin(s, at)
	if err != nil {
		s.Fatal(err)
	}
	l.finish(s, c)
	return c
}

func (l *lab) unmake(s *step, c *cut) {
	s.Helper()
	began := time.Now()
	if err := l.partitions.Destroy(s.Context(), l.UUID, c.gi); err != nil {
		s.Fatal(err)
	}
	c.measured("destroyed", began)
}

// seenID has the id of a GPU instance, beside that of the double, and how long all took.
func (l *lab) seenID(s *step, c *cut) {
	s.Helper()
	expected, observed := "any id", fmt.Sprintf("id %d", c.gi)
	for _, p := range l.double {
		if n := slices.Index(p.Starts, c.at.start); p.Enum == c.at.profile.Enum && n >= 0 {
			expected = fmt.Sprintf("id %d", p.GIs[n])
		}
	}
	result := report.Seen
	if expected == observed {
		result = report.Passed
	}
	s.began = time.Now().Add(-c.took)
	s.row("GPU instance "+c.at.String(), expected, observed+"; "+c.times, result)
}

// together makes instances next to each other, and destroys them.
func (l *lab) together(s *step, places []place, meanwhile func()) {
	s.Helper()
	var all []*cut
	for _, at := range places {
		all = append(all, l.make(s, at))
	}
	meanwhile()
	for _, c := range all {
		l.unmake(s, c)
		l.seenID(s, c)
	}
}

// twice follows one instance step by step, and makes it again.
func (l *lab) twice(s *step) {
	c, err := l.begin(s, l.plan.alone)
	if err != nil {
		s.Fatal(err)
	}
	l.seenID(s, c)
	l.listed(s, "MIG devices that NVML lists while it has no compute instance", 0)
	l.finish(s, c)
	s.check("its compute instance", "a UUID that begins with MIG-", fmt.Sprintf("%s, id %d; %s", c.UUID, c.CI, c.times),
		strings.HasPrefix(c.UUID, "MIG-"))
	l.listed(s, "MIG devices that NVML lists then", 1)
	l.capabilities(s, c.Instance)
	device, ret := here.lib.DeviceGetHandleByUUID(l.UUID)
	if ret == nvml.SUCCESS {
		var handle nvml.GpuInstance
		if handle, ret = device.GetGpuInstanceById(c.gi); ret == nvml.SUCCESS {
			ret = handle.Destroy()
		}
	}
	s.check("it is destroyed with its compute instance in it", nvml.ERROR_IN_USE.Error(), ret.Error(),
		ret == nvml.ERROR_IN_USE)
	l.unmake(s, c)
	left, err := l.partitions.Instances(s.Context(), l.UUID)
	s.check("it is destroyed, idle", "no instance is left", fmt.Sprintf("%d are left; %s", len(left), c.times),
		err == nil && len(left) == 0)
	again := l.make(s, l.plan.alone)
	s.check("the same place again: UUID", "not "+c.UUID, again.UUID, again.UUID != c.UUID)
	s.compare("the same place again: ids", c.InstanceID.String(), again.InstanceID.String())
}

func (l *lab) listed(s *step, what string, want int) {
	s.Helper()
	device, ret := here.lib.DeviceGetHandleByUUID(l.UUID)
	if ret != nvml.SUCCESS {
		s.Fatal(ret)
	}
	most, ret := device.GetMaxMigDeviceCount()
	found := 0
	for at := range most {
		if _, ret := device.GetMigDeviceHandleByIndex(at); ret == nvml.SUCCESS {
			found++
		}
	}
	s.check(what, fmt.Sprint(want), fmt.Sprint(found), found == want && ret == nvml.SUCCESS)
}

// beside makes instances of several profiles in places, and asks for places that are taken.
func (l *lab) beside(s *step) {
	l.together(s, append([]place{l.plan.alone}, l.plan.beside...), func() {
		for what, at := range map[string]place{
			fmt.Sprintf("another %s, where one is", l.plan.alone):                             l.plan.alone,
			fmt.Sprintf("a %s, where a %s is", l.plan.overlapping, l.plan.alone.profile.Name): l.plan.overlapping,
		} {
			_, err := l.begin(s, at)
			s.check(what, gpu.ErrPlaceTaken.Error(), fmt.Sprint(err), errors.Is(err, gpu.ErrPlaceTaken))
		}
	})
}

// pair shows which ids two profiles of one size have side by side.
func (l *lab) pair(s *step) { l.together(s, l.plan.pair, func() {}) }

// each makes an instance of each profile, one after the other.
func (l *lab) each(s *step) {
	for _, at := range l.plan.each {
		l.together(s, []place{at}, func() {})
	}
}

// capability is the name of an instance's in mig-minors: of the GPU instance where ci is gpu.NoCI.
func capability(minor, gi, ci int) string {
	if ci == gpu.NoCI {
		return fmt.Sprintf("gpu%d/gi%d/access", minor, gi)
	}
	return fmt.Sprintf("gpu%d/gi%d/ci%d/access", minor, gi, ci)
}

// capabilityMinor is what the kernel module shows of an instance that is there.
func (l *lab) capabilityMinor(name string) (n int, err error) {
	of, rest, _ := strings.Cut(name, "/")
	content, err := os.ReadFile(filepath.Join(l.root, "proc/driver/nvidia/capabilities", of, "mig", rest))
	for line := range strings.Lines(string(content)) {
		if _, scanned := fmt.Sscanf(line, "DeviceFileMinor: %d", &n); scanned == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("the kernel module shows no minor number of %s: %q: %w", name, content, err)
}

// nodes are the device nodes with which a container can use the instance, and no other: that of the GPU, and those of
// its capabilities (source: NVIDIA's MIG user guide).
func (l *lab) nodes(s *step, i gpu.Instance) []string {
	s.Helper()
	nodes := []string{fmt.Sprintf("/dev/nvidia%d", l.Minor)}
	for _, ci := range []int{gpu.NoCI, i.CI} {
		n, err := l.capabilityMinor(capability(l.Minor, i.GI, ci))
		if err != nil {
			s.Fatal(err)
		}
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
	}
	slices.Sort(nodes)
	return nodes
}

// capabilities compares what the kernel module shows of an instance with its table, and looks for the device nodes,
// which nvidia-modprobe makes.
func (l *lab) capabilities(s *step, i gpu.Instance) {
	s.Helper()
	table, err := os.ReadFile(filepath.Join(l.root, "proc/driver/nvidia-caps/mig-minors"))
	if err != nil {
		s.Fatal(err)
	}
	for _, ci := range []int{gpu.NoCI, i.CI} {
		name := capability(l.Minor, i.GI, ci)
		n, err := l.capabilityMinor(name)
		observed := fmt.Sprintf("%s %d", name, n)
		if err != nil {
			observed = err.Error()
		}
		s.check("capability "+name, "a line of mig-minors", observed,
			slices.Contains(strings.Split(string(table), "\n"), observed))
		node := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n)
		if _, err := os.Stat(filepath.Join(l.root, node)); err != nil {
			node += " is not there"
		}
		s.seen("device node on the machine", "", node)
	}
}
