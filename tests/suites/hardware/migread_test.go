// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/modes"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/nvmllib"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// Fields of nvmlDeviceGetFieldValues that say how a GPU comes to be in MIG mode.
const (
	fieldResetless = 184 // NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
	fieldQueries   = 199 // NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE
)

// finding is what the driver tells, beside what the test double tells, where that is known.
type finding struct{ what, expected, observed string }

// readMIG has what the driver tells of how a machine's GPUs could be cut, and each difference from the test double. It
// changes nothing, and works with MIG off.
func readMIG(ctx context.Context, lib nvml.Interface, partitions *gpunvml.Partitions, m *gpu.Machine,
	procFS string) (all []finding) {
	capable := false
	for _, g := range m.All() {
		name := fmt.Sprintf("GPU %d: ", g.Index)
		seen := func(what, observed string) {
			all = append(all, finding{what: name + what, observed: observed})
		}
		seen("MIG mode", modes.Tell(g.MIG))
		if !g.MIG.Capable {
			continue
		}
		capable = true
		seen("MIG mode is switched without a reset (field 184)", field(ctx, lib, g.UUID, fieldResetless))
		seen("MIG is told of in any mode (field 199)", field(ctx, lib, g.UUID, fieldQueries))
		profiles, err := partitions.Profiles(ctx, g.UUID)
		if err != nil {
			seen("profiles", err.Error())
		}
		all = append(all, compareMIG(name, profiles)...)
	}
	if capable {
		all = append(all, minors(filepath.Join(procFS, "driver/nvidia-caps/mig-minors")))
	}
	return all
}

func field(ctx context.Context, lib nvml.Interface, uuid string, id uint32) string {
	value, err := modes.Ask(ctx, lib, "reading a field", uuid, func(device nvml.Device) (uint32, nvml.Return) {
		values := []nvml.FieldValue{{FieldId: id}}
		ret := device.GetFieldValues(values)
		if ret == nvml.SUCCESS {
			ret = nvml.Return(values[0].NvmlReturn)
		}
		return binary.NativeEndian.Uint32(values[0].Value[:4]), ret
	})
	return told(fmt.Sprint(value), err)
}

// told is what was answered, or why nothing was.
func told(answer string, err error) string {
	if err != nil {
		return err.Error()
	}
	return answer
}

// compareMIG has what double and driver tell of each profile.
func compareMIG(name string, profiles []gpu.Profile) (all []finding) {
	table := nearest(profiles)
	double, driver := map[int]string{}, map[int]string{}
	var ids []int
	for _, p := range sim.MIGTable(table) {
		double[p.Kind.ProfileID], ids = describe(p.Profile), append(ids, p.Kind.ProfileID)
	}
	for _, p := range profiles {
		driver[p.Kind.ProfileID], ids = describe(p), append(ids, p.Kind.ProfileID)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		all = append(all, finding{fmt.Sprintf("%sprofile %d, as the double's %s", name, id, table),
			cmp.Or(double[id], "none"), cmp.Or(driver[id], "none")})
	}
	return all
}

// describe is a profile in a line.
func describe(p gpu.Profile) string {
	k := p.Kind
	return fmt.Sprintf("%s, %d at most, %d MiB, %d SMs, engines CE %d DEC %d ENC %d JPEG %d OFA %d, at %v : %d", k.Profile,
		p.Count, k.MemoryMiB, k.SMCount, k.CopyEngines, k.Decoders, k.Encoders, k.JPEGs, k.OFAs, p.Starts, k.Size)
}

// nearest is the double's table whose largest profile is most like that which was told.
func nearest(profiles []gpu.Profile) string {
	largest := func(profiles []gpu.Profile) (sms, mib int64) {
		for _, p := range profiles {
			sms, mib = max(sms, int64(p.Kind.SMCount)), max(mib, p.Kind.MemoryMiB)
		}
		return sms, mib
	}
	apart := func(a, b int64) int64 { return max(a-b, b-a) }
	sms, mib := largest(profiles)
	return slices.MinFunc(sim.MIGTables(), func(a, b string) int {
		smsOfA, mibOfA := largest(profilesOf(a))
		smsOfB, mibOfB := largest(profilesOf(b))
		return cmp.Or(cmp.Compare(apart(sms, smsOfA), apart(sms, smsOfB)),
			cmp.Compare(apart(mib, mibOfA), apart(mib, mibOfB)))
	})
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

// profilesOf are the profiles of a table of the double's.
func profilesOf(table string) (all []gpu.Profile) {
	for _, p := range sim.MIGTable(table) {
		all = append(all, p.Profile)
	}
	return all
}

// differing are the findings that are not as the double's.
func differing(all []finding) []finding {
	return slices.DeleteFunc(slices.Clone(all), func(f finding) bool { return f.observed == f.expected })
}

// What tells the same as a table is compared with that one, and is the same; each difference is one finding.
func TestCompareMIG(t *testing.T) {
	for _, table := range sim.MIGTables() {
		profiles := profilesOf(table)
		if rows := compareMIG("", profiles); len(differing(rows)) > 0 || len(rows) != len(profiles) {
			t.Errorf("%s: %+v", table, rows)
		}
	}
	profiles := profilesOf("h100-80")
	profiles[0].Kind.SMCount++
	profiles[1].Starts = []int{0, 2}
	profiles = profiles[:len(profiles)-1]
	extra := profiles[2]
	extra.Kind.ProfileID = 40
	rows := compareMIG("", append(profiles, extra))
	if differ := differing(rows); len(differ) != 4 || !strings.Contains(rows[0].what, "h100-80") {
		t.Errorf("%s: %d differences, want 4 from h100-80: %q", rows[0].what, len(differ), differ)
	}
}

func TestMinors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mig-minors")
	if f := minors(path); !strings.Contains(f.observed, "no such file") {
		t.Errorf("no file: %+v", f)
	}
	for content, same := range map[string]bool{
		sim.MIGMinors(): true,
		strings.Replace(sim.MIGMinors(), "gpu0/gi0/access 3\n", "gpu0/gi0/access 4\n", 1): false,
		"config 1\n": false,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if f := minors(path); (f.observed == f.expected) != same {
			t.Errorf("%+v, the same: %t", f, same)
		}
	}
}

// What a library tells, with MIG on and off: the double's own is the double's table. No process can open two
// libraries, so one machine has all kinds.
func TestReadMIG(t *testing.T) {
	content, err := nvmllib.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sim.Load(filepath.Join("..", "..", "..", "demo", "machines", "migx4.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	none := spec.Models["a100-80"]
	none.MIG, none.MIGProfiles = false, ""
	spec.Models["none"] = none
	spec.GPUs[3].Model = "none"
	dir := t.TempDir()
	library, err := spec.WriteNVML(dir, content)
	if err != nil {
		t.Fatal(err)
	}
	options := gpunvml.OpenOptions{LibraryPath: library}
	lib, err := gpunvml.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	m, err := gpunvml.Read(t.Context(), lib, gpunvml.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rows := readMIG(t.Context(), lib, gpunvml.NewPartitions(options), m, dir)
	said := map[string]string{}
	for _, r := range rows {
		said[r.what] = r.observed
	}
	for what, want := range map[string]string{
		"GPU 0: MIG mode": "on, on after a reset",
		"GPU 2: MIG mode": "off, off after a reset",
		"GPU 3: MIG mode": "none",
		"GPU 2: MIG mode is switched without a reset (field 184)": "0",
	} {
		if got := said[what]; got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	// Three GPUs of seven profiles each; there is no mig-minors.
	if same := len(rows) - len(differing(rows)); same != 21 {
		t.Errorf("%d rows are the same as the double's, want 21: %+v", same, rows)
	}
}
