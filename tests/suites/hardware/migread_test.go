// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// Fields of nvmlDeviceGetFieldValues that say how a GPU comes to be in MIG mode.
const (
	fieldResetless = 184 // NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
	fieldQueries   = 199 // NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE
)

// maxProfiles ends an enumeration that a driver does not end.
const maxProfiles = 64

// readMIG has what the driver tells of the GPUs' partitions, and each difference from the test double. It changes
// nothing, and works with MIG off. Calls to NVML may hang.
func readMIG(lib nvml.Interface, procFS string) (rows []report.Row) {
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return []report.Row{{What: "GPUs", Observed: ret.Error(), Result: report.NotRun}}
	}
	var capable bool
	for i := range count {
		device, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		name := fmt.Sprintf("GPU %d in NVML's order", i)
		profiles, told, is := profilesOf(lib, device, name)
		rows = append(rows, told...)
		if is {
			capable = true
			rows = append(rows, compareMIG(name, profiles)...)
		}
	}
	if capable {
		rows = append(rows, minors(filepath.Join(procFS, "driver/nvidia-caps/mig-minors")))
	}
	return rows
}

func has(lib nvml.Interface, function string) bool {
	return lib.Extensions().LookupSymbol(function) == nil
}

// profilesOf are what the driver tells that a GPU can be cut into, with rows of what is worth to know besides. Where it
// does not tell their names, as with MIG off, they have none. capable is false where the GPU has no MIG mode.
func profilesOf(lib nvml.Interface, device nvml.Device, name string) (profiles []sim.MIGProfile, rows []report.Row,
	capable bool) {
	seen := func(what, observed string) {
		rows = append(rows, report.Row{What: name + ": " + what, Observed: observed, Result: report.Seen})
	}
	if !has(lib, "nvmlDeviceGetMigMode") {
		seen("MIG mode", "the library does not know of it")
		return nil, rows, false
	}
	current, pending, ret := device.GetMigMode()
	if ret != nvml.SUCCESS {
		seen("MIG mode", ret.Error())
		return nil, rows, false
	}
	seen("MIG mode", fmt.Sprintf("%s, %s after a reset", onOff(current == nvml.DEVICE_MIG_ENABLE),
		onOff(pending == nvml.DEVICE_MIG_ENABLE)))
	seen("MIG mode is switched without a reset (field 184)", field(device, fieldResetless))
	seen("MIG is told of in any mode (field 199)", field(device, fieldQueries))
	for _, function := range []string{"nvmlDeviceGetGpuInstanceProfileInfo",
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstanceProfileInfoV"} {
		if !has(lib, function) {
			seen(function, "the library does not have it")
			return profiles, rows, true
		}
	}
	for enum := range maxProfiles {
		info, ret := device.GetGpuInstanceProfileInfo(enum)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			seen("profiles", fmt.Sprintf("%d, NVML numbers them below %d", len(profiles), enum))
			break
		}
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvml.SUCCESS {
			seen(fmt.Sprintf("profile %d", enum), ret.Error())
			continue
		}
		p := sim.MIGProfile{Enum: enum, ID: int(info.Id), Slices: int(info.SliceCount), Most: int(info.InstanceCount),
			MemoryMiB: int(info.MemorySizeMB), SMs: int(info.MultiprocessorCount), Copy: int(info.CopyEngineCount),
			Decode: int(info.DecoderCount), Encode: int(info.EncoderCount), JPEG: int(info.JpegCount), OFA: int(info.OfaCount)}
		v3, ret3 := device.GetGpuInstanceProfileInfoV(enum).V3()
		v2, ret2 := device.GetGpuInstanceProfileInfoV(enum).V2()
		switch {
		case ret3 == nvml.SUCCESS:
			p.Name = nameOf(v3.Name[:])
		case ret2 == nvml.SUCCESS:
			p.Name = nameOf(v2.Name[:])
		}
		placements, ret := device.GetGpuInstancePossiblePlacements(&info)
		if ret != nvml.SUCCESS {
			seen(fmt.Sprintf("profile %d's placements", enum), ret.Error())
		}
		for _, at := range placements {
			p.Starts, p.Size = append(p.Starts, int(at.Start)), int(at.Size)
		}
		slices.Sort(p.Starts)
		profiles = append(profiles, p)
	}
	return profiles, rows, true
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func field(device nvml.Device, id uint32) string {
	values := []nvml.FieldValue{{FieldId: id}}
	if ret := device.GetFieldValues(values); ret != nvml.SUCCESS {
		return ret.Error()
	}
	if ret := nvml.Return(values[0].NvmlReturn); ret != nvml.SUCCESS {
		return ret.Error()
	}
	return fmt.Sprint(binary.NativeEndian.Uint32(values[0].Value[:4]))
}

func nameOf(name []int8) string {
	var b strings.Builder
	for _, c := range name {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// compareMIG has a row for each profile: that the double says the same of it, or what the two say.
func compareMIG(name string, told []sim.MIGProfile) []report.Row {
	table := nearest(told)
	doubles := map[int]sim.MIGProfile{}
	for _, p := range sim.MIGTable(table) {
		doubles[p.Enum] = p
	}
	var rows []report.Row
	add := func(enum int, double, driver string) {
		result := report.Passed
		if double != driver {
			result = report.Seen
		}
		rows = append(rows, report.Row{What: fmt.Sprintf("%s: profile %d, as the double's %s", name, enum, table),
			Granted: double, Observed: driver, Result: result})
	}
	for _, p := range told {
		double, known := doubles[p.Enum]
		delete(doubles, p.Enum)
		if !known {
			add(p.Enum, "none", describe(p))
			continue
		}
		if p.Name == "" { // Not told with MIG off.
			p.Name = double.Name
		}
		p.Name = strings.TrimPrefix(p.Name, "MIG ")
		add(p.Enum, describe(double), describe(p))
	}
	for _, p := range sim.MIGTable(table) {
		if _, left := doubles[p.Enum]; left {
			add(p.Enum, describe(p), "none")
		}
	}
	return rows
}

// describe is a profile in a line.
func describe(p sim.MIGProfile) string {
	return fmt.Sprintf("%s id %d, %d slices, %d at most, %d MiB, %d SMs, engines CE %d DEC %d ENC %d JPEG %d OFA %d, "+
		"at %v : %d", p.Name, p.ID, p.Slices, p.Most, p.MemoryMiB, p.SMs,
		p.Copy, p.Decode, p.Encode, p.JPEG, p.OFA, p.Starts, p.Size)
}

// nearest is the double's table that is most like what was told.
func nearest(told []sim.MIGProfile) string {
	best, most := "", -1
	for _, table := range sim.MIGTables() {
		alike := 0
		for _, p := range sim.MIGTable(table) {
			for _, q := range told {
				if p.Enum != q.Enum {
					continue
				}
				for _, same := range []bool{p.ID == q.ID, p.Slices == q.Slices, p.SMs == q.SMs,
					abs(p.MemoryMiB-q.MemoryMiB)*20 < p.MemoryMiB} {
					if same {
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

func abs(n int) int { return max(n, -n) }

// minors compares the kernel module's table of capabilities with the double's.
func minors(path string) report.Row {
	row := report.Row{What: "the kernel module's mig-minors", Granted: "as the double's", Result: report.Seen}
	content, err := os.ReadFile(path)
	if err != nil {
		row.Observed = err.Error()
		return row
	}
	driver := strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' })
	double := strings.FieldsFunc(sim.MIGMinors(), func(r rune) bool { return r == '\n' })
	var only []string
	for _, line := range driver {
		if !slices.Contains(double, line) {
			only = append(only, line)
		}
	}
	missing := len(double) - (len(driver) - len(only))
	if len(only) == 0 && missing == 0 {
		row.Observed, row.Result = fmt.Sprintf("%d lines, the same", len(driver)), report.Passed
		return row
	}
	row.Observed = fmt.Sprintf("%d lines, of which the double lacks %d, as %q; it has %d others", len(driver), len(only),
		only[:min(3, len(only))], missing)
	return row
}
