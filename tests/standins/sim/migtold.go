// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// NVML's fields that say how a GPU comes to be in MIG mode.
const (
	fieldResetlessMIG = 184 // NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
	fieldMIGQueries   = 199 // NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE
)

// addMIG adds what a GPU with a MIG mode answers, and takes away what it does not tell in that mode.
func (s *Spec) addMIG(all map[string]any, g int) {
	m, model := s.GPUs[g].MIG, s.Models[s.GPUs[g].Model]
	all["mig"] = fmt.Sprintf("%d %d", number(m.Enabled), number(m.pending()))
	all[fmt.Sprintf("field.%d", fieldResetlessMIG)] = number(model.Architecture != "Ampere")
	all[fmt.Sprintf("field.%d", fieldMIGQueries)] = number(model.Architecture != "Ampere")
	if !m.Enabled {
		return
	}
	delete(all, "cores")
	delete(all, "computeMode")
	delete(all, "setComputeMode")
	delete(all, "utilization")
	most := 0
	for _, p := range migTables[model.MIGProfiles] {
		most = max(most, p.most)
	}
	all["maxMig"] = most
	for _, d := range s.migDevices(g) {
		p := d.profile
		prefix := fmt.Sprintf("mig.%d.%d.", d.gi, d.ci)
		all[prefix+"handle"], all[prefix+"uuid"] = 0, d.uuid
		all[prefix+"name"] = model.ProductName + " MIG " + p.deviceName(d.slices)
		all[prefix+"memory"], all[prefix+"reserved"], all[prefix+"processes"] = p.memoryMiB, 0, 0
		all[prefix+"attributes"] = fmt.Sprintf("%d %d %d %d %d %d %d %d %d", p.sms*d.slices/p.slices, p.engines[0],
			p.engines[1], p.engines[2], p.engines[3], p.engines[4], p.slices, d.slices, p.memoryMiB)
	}
}

// migLines are what there may be several of: profiles, and what the GPU is cut into.
func (s *Spec) migLines(g int) (lines [][2]string) {
	c, model := s.GPUs[g], s.Models[s.GPUs[g].Model]
	add := func(key, format string, args ...any) {
		lines = append(lines, [2]string{key, fmt.Sprintf(format, args...)})
	}
	table := migTables[model.MIGProfiles]
	for _, p := range table {
		e := p.engines
		add("profile", "%d %d %d %d %d %d %d %d %d %d %d %d MIG %s", p.enum, p.id, p.slices, p.most, p.sms, e[0], e[1], e[2],
			e[3], e[4], p.memoryMiB, 2*number(p.graphics), p.name)
		for _, start := range p.starts {
			add("placement", "%d %d %d", p.id, start, p.size)
		}
		for _, ci := range p.ciProfiles() {
			add("ciProfile", "%d %d %d %d %d %d %d %d %d %d %d MIG %s", p.id, ci.enum, ci.enum, ci.slices, p.slices/ci.slices,
				p.sms*ci.slices/p.slices, e[0], e[1], e[2], e[3], e[4], p.deviceName(ci.slices))
		}
	}
	ids := s.gpuInstanceIDs(g)
	for nth, i := range c.MIG.Instances {
		p, _ := s.profile(g, i.Profile)
		add("gi", "%d %d %d %d", ids[nth], p.id, i.Start, p.size)
	}
	for _, d := range s.migDevices(g) {
		add("ci", "%d %d %d %d %d", d.gi, d.ci, d.ciEnum(), d.start, d.slices)
	}
	return lines
}

// ciEnum is the profile of the compute instance, which is its id in its GPU instance, too.
func (d migDevice) ciEnum() int {
	for _, c := range d.profile.ciProfiles() {
		if c.slices == d.slices {
			return c.enum
		}
	}
	return 0
}

// partOf are the ids of the instance that the process is in; -1 if it is in none.
func (s *Spec) partOf(g int, p Process) (gi, ci int) {
	for _, d := range s.migDevices(g) {
		if p.isOf(s.GPUs[g].MIG.Instances[d.gpuInstanceNth]) {
			return d.gi, d.ci
		}
	}
	return -1, -1
}

// Where the kernel module shows what may be opened, below a driver root.
const (
	// ProcDir is the node's procfs as far as it is simulated.
	ProcDir = "proc"
	// capsMajor is the major number of the capabilities' device nodes: see gpuMajor.
	capsMajor = 62
	capsDir   = "dev/nvidia-caps"
)

// capMinor is the minor number of a capability, as the kernel module's mig-minors has it for a GPU's minor number:
// that of a GPU instance, or with ci >= 0 of a compute instance in it.
func capMinor(gpu, gi, ci int) int { return 3 + 135*gpu + 9*gi + 1 + ci }

// addCapabilities adds the capabilities of MIG instances, and their device nodes.
func (s *Spec) addCapabilities(entries map[string]entry) {
	var can bool
	for i, c := range s.GPUs {
		can = can || s.Models[c.Model].MIG
		if c.MIG.NoCapabilities {
			continue
		}
		add := func(path string, gi, ci int) {
			minor := capMinor(s.minor(i), gi, ci)
			dir := fmt.Sprintf("%s/driver/nvidia/capabilities/gpu%d/mig/%s", ProcDir, s.minor(i), path)
			entries[dir+"/access"] = file(fmt.Appendf(nil,
				"DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor), 0o444)
			entries[fmt.Sprintf("%s/nvidia-cap%d", capsDir, minor)] = capability(minor, 0o444)
		}
		ids := s.gpuInstanceIDs(i)
		for nth, instance := range c.MIG.Instances {
			p, _ := s.profile(i, instance.Profile)
			gi := ids[nth]
			add(fmt.Sprintf("gi%d", gi), gi, -1)
			for ci := range instance.compute(p) {
				add(fmt.Sprintf("gi%d/ci%d", gi, ci), gi, ci)
			}
		}
	}
	if !can {
		return
	}
	for name, minor := range map[string]int{"config": 1, "monitor": 2} {
		entries[fmt.Sprintf("%s/driver/nvidia/capabilities/mig/%s", ProcDir, name)] = file(fmt.Appendf(nil,
			"DeviceFileMinor: %d\nDeviceFileMode: 256\nDeviceFileModify: 1\n", minor), 0o400)
		entries[fmt.Sprintf("%s/nvidia-cap%d", capsDir, minor)] = capability(minor, 0o400)
	}
	entries[ProcDir+"/driver/nvidia-caps/mig-minors"] = file([]byte(migMinors()), 0o444)
	entries[ProcDir+"/devices"] = file(fmt.Appendf(nil, "Character devices:\n  1 mem\n%3d nvidia\n%3d nvidia-caps\n%3d "+
		"nvidia-uvm\n\nBlock devices:\n  8 sd\n", gpuMajor, capsMajor, uvmMajor), 0o444)
}

func capability(minor int, mode fs.FileMode) entry {
	return entry{mode: fs.ModeDevice | fs.ModeCharDevice | mode, device: unix.Mkdev(capsMajor, uint32(minor))}
}

// migMinors is the kernel module's table of all capabilities that there can be.
func migMinors() string {
	var b strings.Builder
	b.WriteString("config 1\nmonitor 2\n")
	for gpu := range 32 {
		for gi := range 15 {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", gpu, gi, capMinor(gpu, gi, -1))
			for ci := range 8 {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", gpu, gi, ci, capMinor(gpu, gi, ci))
			}
		}
	}
	return b.String()
}
