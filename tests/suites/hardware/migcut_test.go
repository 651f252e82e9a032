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
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/migmode"
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
	// why nothing more can be tried; empty while it can.
	why string
	// off is what the driver tells that it can be cut into before its mode is switched, and double what the test double
	// tells of the GPU that is most like this one.
	off, double []sim.MIGProfile
	plan        migPlan
}

func newLab(asked string) (*lab, error) {
	l := &lab{partitions: gpunvml.NewPartitions(gpunvml.OpenOptions{LibraryPath: here.driver.NVML}),
		record: os.Getenv("GPUSHARE_MIG_RECORD"), why: "MIG mode is not on"}
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
	profiles, _ := profilesOf(here.lib, handle(s, l.UUID))
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

// switchOn has the GPU in MIG mode. What it was in before is written down first.
func (l *lab) switchOn(s *step) {
	const what = "MIG mode is switched on"
	before, err := migmode.Read(s.Context(), here.lib, l.UUID)
	s.must(err)
	l.off = l.profiles(s)
	s.must(migmode.Record{Library: here.driver.NVML, UUID: l.UUID, On: before.Now}.Write(l.record))
	on, observed, after, activation := migmode.Mode{Now: true, Pending: true}, "it was on", before, nvml.SUCCESS
	s.clock()
	if !before.Now {
		activation, after, err = migmode.Set(s.Context(), here.lib, l.UUID, true)
		s.must(err)
		observed = fmt.Sprintf("%s; activation status: %v", after, activation)
	}
	switch {
	case after.Now && activation == nvml.SUCCESS:
		l.why = ""
		s.check(what, on.String(), observed, true)
	case after.Pending && (activation == nvml.SUCCESS || activation == nvml.ERROR_RESET_REQUIRED):
		l.why = fmt.Sprintf("reset the GPU while MIG mode is on (nvidia-smi -i %s -mig 1, then --gpu-reset, or a reboot), "+
			"and run this again", l.UUID)
		s.part(what, on.String(), observed, func(t *testing.T) { t.SkipNow() })
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
	differ, off := "the same", unnamed(l.off)
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
}

func (c *cut) measured(what string, began time.Time) {
	c.times += fmt.Sprintf("%s %.2f s ", what, time.Since(began).Seconds())
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
	c.Instance, err = l.partitions.MakeComputeInstance(s.Context(), l.UUID, c.gi)
	s.must(err)
	c.measured("compute instance made", began)
}

func (l *lab) make(s *step, at place) *cut {
	s.Helper()
	c, err := l.begin(s, at)
	s.must(err)
	l.finish(s, c)
	return c
}

func (l *lab) unmake(s *step, c *cut) {
	s.Helper()
	began := time.Now()
	s.must(l.partitions.Destroy(s.Context(), l.UUID, c.gi))
	c.measured("destroyed", began)
}

// seenID has the id of a GPU instance, beside that of the double, and how long all took.
func (l *lab) seenID(s *step, c *cut) {
	s.Helper()
	expected, observed := "", fmt.Sprintf("id %d", c.gi)
	for _, p := range l.double {
		if n := slices.Index(p.Starts, c.at.start); p.Enum == c.at.profile.Enum && n >= 0 {
			expected = fmt.Sprintf("id %d", p.GIs[n])
		}
	}
	what := "GPU instance " + c.at.String()
	s.compare(what, expected, observed)
	s.seen(what+", times", "", c.times)
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
	s.must(err)
	l.seenID(s, c)
	l.listed(s, "MIG devices that NVML lists while it has no compute instance", 0)
	l.finish(s, c)
	s.check("its compute instance", "a UUID that begins with MIG-", fmt.Sprintf("%s, id %d; %s", c.UUID, c.CI, c.times),
		strings.HasPrefix(c.UUID, "MIG-"))
	l.listed(s, "MIG devices that NVML lists then", 1)
	l.capabilities(s, c.Instance)
	instance, ret := handle(s, l.UUID).GetGpuInstanceById(c.gi)
	if ret == nvml.SUCCESS {
		ret = instance.Destroy()
	}
	s.same("it is destroyed with its compute instance in it", nvml.ERROR_IN_USE.Error(), ret.Error())
	l.unmake(s, c)
	left, err := l.partitions.Instances(s.Context(), l.UUID)
	s.must(err)
	s.check("it is destroyed, idle", "no instance is left", fmt.Sprintf("%d are left; %s", len(left), c.times),
		len(left) == 0)
	again := l.make(s, l.plan.alone)
	s.check("the same place again: UUID", "not "+c.UUID, again.UUID, again.UUID != c.UUID)
	s.compare("the same place again: ids", c.InstanceID.String(), again.InstanceID.String())
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
