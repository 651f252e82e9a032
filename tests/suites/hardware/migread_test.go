// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/migmode"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// Fields of nvmlDeviceGetFieldValues that say how a GPU comes to be in MIG mode.
const (
	fieldResetless = 184 // NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
	fieldQueries   = 199 // NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE
)

// maxProfiles ends an enumeration that a driver does not end.
const maxProfiles = 64

// finding is what the driver tells, beside what the test double tells, where that is known.
type finding struct{ what, expected, observed string }

// readMIG has what the driver tells of the GPUs' partitions, and each difference from the test double. It changes
// nothing, and works with MIG off. Calls to NVML may hang.
func readMIG(lib nvml.Interface, procFS string) (all []finding) {
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return []finding{{what: "GPUs", observed: ret.Error()}}
	}
	capable := false
	for i := range count {
		device, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		name := fmt.Sprintf("GPU %d in NVML's order: ", i)
		seen := func(what, observed string) {
			all = append(all, finding{what: name + what, observed: observed})
		}
		if lib.Extensions().LookupSymbol("nvmlDeviceGetMigMode") != nil {
			seen("MIG mode", "the library does not know of it")
			continue
		}
		now, pending, ret := device.GetMigMode()
		if ret != nvml.SUCCESS {
			seen("MIG mode", ret.Error())
			continue
		}
		capable = true
		mode := migmode.Mode{Now: now == nvml.DEVICE_MIG_ENABLE, Pending: pending == nvml.DEVICE_MIG_ENABLE}
		seen("MIG mode", mode.String())
		seen("MIG mode is switched without a reset (field 184)", field(device, fieldResetless))
		seen("MIG is told of in any mode (field 199)", field(device, fieldQueries))
		profiles, remarks := profilesOf(lib, device)
		seen("profiles", fmt.Sprintf("%d; %s", len(profiles), strings.Join(remarks, "; ")))
		all = append(all, compareMIG(name, profiles)...)
	}
	if capable {
		all = append(all, minors(filepath.Join(procFS, "driver/nvidia-caps/mig-minors")))
	}
	return all
}

// profilesOf are what the driver tells that a GPU can be cut into, and what is worth to know besides. Where it does not
// tell their names, as with MIG off, they have none.
func profilesOf(lib nvml.Interface, device nvml.Device) (profiles []sim.MIGProfile, remarks []string) {
	for _, function := range []string{"nvmlDeviceGetGpuInstanceProfileInfo",
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstanceProfileInfoV"} {
		if lib.Extensions().LookupSymbol(function) != nil {
			return nil, []string{"the library has no " + function}
		}
	}
	for enum := range maxProfiles {
		info, ret := device.GetGpuInstanceProfileInfo(enum)
		switch ret {
		case nvml.ERROR_INVALID_ARGUMENT:
			return profiles, append(remarks, fmt.Sprintf("NVML numbers them below %d", enum))
		case nvml.ERROR_NOT_SUPPORTED:
			continue
		case nvml.SUCCESS:
		default:
			remarks = append(remarks, fmt.Sprintf("profile %d: %s", enum, ret.Error()))
			continue
		}
		p := sim.MIGProfile{Enum: enum, ID: int(info.Id), Slices: int(info.SliceCount), Most: int(info.InstanceCount),
			MemoryMiB: int(info.MemorySizeMB), SMs: int(info.MultiprocessorCount), Copy: int(info.CopyEngineCount),
			Decode: int(info.DecoderCount), Encode: int(info.EncoderCount), JPEG: int(info.JpegCount), OFA: int(info.OfaCount)}
		if v3, ret := device.GetGpuInstanceProfileInfoV(enum).V3(); ret == nvml.SUCCESS {
			p.Name = profileName(v3.Name[:])
		} else if v2, ret := device.GetGpuInstanceProfileInfoV(enum).V2(); ret == nvml.SUCCESS {
			p.Name = profileName(v2.Name[:])
		}
		placements, ret := device.GetGpuInstancePossiblePlacements(&info)
		if ret != nvml.SUCCESS {
			remarks = append(remarks, fmt.Sprintf("placements of profile %d: %s", enum, ret.Error()))
		}
		for _, at := range placements {
			p.Starts, p.Size = append(p.Starts, int(at.Start)), int(at.Size)
		}
		slices.Sort(p.Starts)
		profiles = append(profiles, p)
	}
	return profiles, remarks
}

// profileName is the driver's name of a profile without what is the same of all.
func profileName(name []int8) string {
	var text []byte
	for _, c := range name[:max(0, slices.Index(name, 0))] {
		text = append(text, byte(c))
	}
	return strings.TrimPrefix(string(text), "MIG ")
}

func field(device nvml.Device, id uint32) string {
	values := []nvml.FieldValue{{FieldId: id}}
	ret := device.GetFieldValues(values)
	if ret == nvml.SUCCESS {
		ret = nvml.Return(values[0].NvmlReturn)
	}
	if ret != nvml.SUCCESS {
		return ret.Error()
	}
	return fmt.Sprint(binary.NativeEndian.Uint32(values[0].Value[:4]))
}

// compareMIG has what double and driver tell of each profile.
func compareMIG(name string, profiles []sim.MIGProfile) (all []finding) {
	table := nearest(profiles)
	double, driver := map[int]string{}, map[int]string{}
	var enums []int
	for _, p := range sim.MIGTable(table) {
		double[p.Enum], enums = describe(p), append(enums, p.Enum)
		// With MIG off a driver may tell no names.
		at := slices.IndexFunc(profiles, func(q sim.MIGProfile) bool { return q.Enum == p.Enum && q.Name == "" })
		if at >= 0 {
			profiles = slices.Clone(profiles)
			profiles[at].Name = p.Name
		}
	}
	for _, p := range profiles {
		driver[p.Enum], enums = describe(p), append(enums, p.Enum)
	}
	slices.Sort(enums)
	for _, enum := range slices.Compact(enums) {
		all = append(all, finding{fmt.Sprintf("%sprofile %d, as the double's %s", name, enum, table),
			cmp.Or(double[enum], "none"), cmp.Or(driver[enum], "none")})
	}
	return all
}

// describe is a profile in a line.
func describe(p sim.MIGProfile) string {
	return fmt.Sprintf("%s id %d, %d slices, %d at most, %d MiB, %d SMs, engines CE %d DEC %d ENC %d JPEG %d OFA %d, "+
		"at %v : %d", p.Name, p.ID, p.Slices, p.Most, p.MemoryMiB, p.SMs,
		p.Copy, p.Decode, p.Encode, p.JPEG, p.OFA, p.Starts, p.Size)
}

// nearest is the double's table that is most like what was told.
func nearest(profiles []sim.MIGProfile) (best string) {
	most := -1
	for _, table := range sim.MIGTables() {
		alike := 0
		for _, p := range sim.MIGTable(table) {
			for _, q := range profiles {
				for _, same := range []bool{p.ID == q.ID, p.Slices == q.Slices, p.SMs == q.SMs,
					max(p.MemoryMiB-q.MemoryMiB, q.MemoryMiB-p.MemoryMiB)*20 < p.MemoryMiB} {
					if same && p.Enum == q.Enum {
						alike++
					}
				}
			}
		}
		if alike > most {
			best, most = table, alike
		}
	}
	return best
}

// minors compares the kernel module's table of capabilities with the double's.
func minors(path string) finding {
	f := finding{what: "lines of mig-minors that only the kernel module has, and only the double", expected: "0 and 0"}
	content, err := os.ReadFile(path)
	if err != nil {
		f.observed = err.Error()
		return f
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	double := strings.Split(strings.TrimSpace(sim.MIGMinors()), "\n")
	only := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(double, line) })
	f.observed = fmt.Sprintf("%d and %d", len(only), len(double)-(len(lines)-len(only)))
	if len(only) > 0 {
		f.observed += fmt.Sprintf(", as %q", only[:min(3, len(only))])
	}
	return f
}
