// SPDX-License-Identifier: Apache-2.0

// Package mig reads how GPUs could be cut into MIG instances, and compares it with what the test double says of
// such a GPU. It changes nothing, and works with MIG off.
package mig

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

// Mode is what the report calls the table.
const Mode = "MIG, read only"

// maxProfiles ends an enumeration that a driver does not end.
const maxProfiles = 64

// driverTold is what the driver tells of one GPU.
type driverTold struct {
	profiles []sim.MIGProfile
	// rows are what is worth to know beside.
	rows []report.Row
}

// Table has what the driver tells of the GPUs' partitions, and each difference from the test double. Calls to
// NVML may hang.
func Table(lib nvml.Interface, procFS string) report.Table {
	t := report.Table{Mode: Mode}
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return report.Table{Mode: t.Mode, Rows: []report.Row{{What: "GPUs", Observed: ret.Error(), Result: report.NotRun}}}
	}
	var capable bool
	for i := range count {
		device, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		name := fmt.Sprintf("GPU %d in NVML's order", i)
		told, is := read(lib, device, name)
		t.Rows = append(t.Rows, told.rows...)
		if is {
			capable = true
			t.Rows = append(t.Rows, compare(name, told.profiles)...)
		}
	}
	if capable {
		t.Rows = append(t.Rows, minors(filepath.Join(procFS, "driver/nvidia-caps/mig-minors")))
	}
	return t
}

func has(lib nvml.Interface, function string) bool {
	return lib.Extensions().LookupSymbol(function) == nil
}

// Profiles are what the driver tells that a GPU can be cut into. Where it does not tell their names, as with MIG off,
// they have none. Calls to NVML may hang.
func Profiles(lib nvml.Interface, device nvml.Device) []sim.MIGProfile {
	told, _ := read(lib, device, "")
	for i := range told.profiles {
		told.profiles[i].Name = strings.TrimPrefix(told.profiles[i].Name, "MIG ")
	}
	return told.profiles
}

// read is false where the GPU has no MIG mode.
func read(lib nvml.Interface, device nvml.Device, name string) (told driverTold, capable bool) {
	seen := func(what, observed string) {
		told.rows = append(told.rows, report.Row{What: name + ": " + what, Observed: observed, Result: report.Seen})
	}
	if !has(lib, "nvmlDeviceGetMigMode") {
		seen("MIG mode", "the library does not know of it")
		return told, false
	}
	current, pending, ret := device.GetMigMode()
	if ret != nvml.SUCCESS {
		seen("MIG mode", ret.Error())
		return told, false
	}
	seen("MIG mode", fmt.Sprintf("%s, %s after a reset", onOff(current), onOff(pending)))
	seen("MIG mode is switched without a reset (field 184)", field(device, fieldResetless))
	seen("MIG is told of in any mode (field 199)", field(device, fieldQueries))
	for _, function := range []string{"nvmlDeviceGetGpuInstanceProfileInfo",
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstanceProfileInfoV"} {
		if !has(lib, function) {
			seen(function, "the library does not have it")
			return told, true
		}
	}
	for enum := range maxProfiles {
		info, ret := device.GetGpuInstanceProfileInfo(enum)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			seen("profiles", fmt.Sprintf("%d, NVML numbers them below %d", len(told.profiles), enum))
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
			p.Name = text(v3.Name[:])
		case ret2 == nvml.SUCCESS:
			p.Name = text(v2.Name[:])
		}
		seen(fmt.Sprintf("profile %d's name", enum), fmt.Sprintf("version 3: %s %q, version 2: %s %q", ret3, text(v3.Name[:]),
			ret2, text(v2.Name[:])))
		placements, ret := device.GetGpuInstancePossiblePlacements(&info)
		if ret != nvml.SUCCESS {
			seen(fmt.Sprintf("profile %d's placements", enum), ret.Error())
		}
		for _, at := range placements {
			p.Starts, p.Size = append(p.Starts, int(at.Start)), int(at.Size)
		}
		slices.Sort(p.Starts)
		told.profiles = append(told.profiles, p)
	}
	return told, true
}

func onOff(mode int) string {
	if mode == nvml.DEVICE_MIG_ENABLE {
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

func text(name []int8) string {
	var b strings.Builder
	for _, c := range name {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// compare has a row for each profile: that the double says the same of it, or what the two say.
func compare(name string, told []sim.MIGProfile) []report.Row {
	table := Nearest(told)
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
			add(p.Enum, "none", Describe(p))
			continue
		}
		if p.Name == "" { // Not told with MIG off.
			p.Name = double.Name
		}
		p.Name = strings.TrimPrefix(p.Name, "MIG ")
		add(p.Enum, Describe(double), Describe(p))
	}
	for _, p := range sim.MIGTable(table) {
		if _, left := doubles[p.Enum]; left {
			add(p.Enum, Describe(p), "none")
		}
	}
	return rows
}

// Describe is a profile in a line.
func Describe(p sim.MIGProfile) string {
	return fmt.Sprintf("%s id %d, %d slices, %d at most, %d MiB, %d SMs, engines CE %d DEC %d ENC %d JPEG %d OFA %d, "+
		"at %v : %d", p.Name, p.ID, p.Slices, p.Most, p.MemoryMiB, p.SMs,
		p.Copy, p.Decode, p.Encode, p.JPEG, p.OFA, p.Starts, p.Size)
}

// Nearest is the double's table that is most like what was told.
func Nearest(told []sim.MIGProfile) string {
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
