// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/nvmllib"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// differing are the findings that are not as the double's.
func differing(all []finding) (differ []finding) {
	for _, f := range all {
		if f.observed != f.expected {
			differ = append(differ, f)
		}
	}
	return differ
}

// What tells the same as a table is compared with that one, and is the same; each difference is one finding.
func TestCompareMIG(t *testing.T) {
	for _, table := range sim.MIGTables() {
		profiles := sim.MIGTable(table)
		if rows := compareMIG("", profiles); len(differing(rows)) > 0 || len(rows) != len(profiles) {
			t.Errorf("%s: %+v", table, rows)
		}
	}
	profiles := sim.MIGTable("h100-80")
	profiles[0].SMs++
	profiles[1].Starts = []int{0, 2}
	profiles[2].Name = "" // Not told with MIG off: no difference.
	profiles = profiles[:len(profiles)-1]
	extra := profiles[2]
	extra.Enum = 40
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
	library, err := nvmllib.Build(t.Context())
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
	path, err := spec.WriteNVML(dir, library)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := gpunvml.Open(t.Context(), gpunvml.OpenOptions{LibraryPath: path})
	if err != nil {
		t.Fatal(err)
	}
	rows := readMIG(lib, dir)
	said := map[string]string{}
	for _, r := range rows {
		said[r.what] = r.observed
	}
	for what, want := range map[string]string{
		"GPU 0 in NVML's order: MIG mode":                                         "on, on after a reset",
		"GPU 2 in NVML's order: MIG mode":                                         "off, off after a reset",
		"GPU 3 in NVML's order: MIG mode":                                         "Not Supported",
		"GPU 2 in NVML's order: MIG mode is switched without a reset (field 184)": "0",
		"GPU 2 in NVML's order: profiles":                                         "7; NVML numbers them below 18",
	} {
		if got := said[what]; !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	// Three GPUs of seven profiles each; there is no mig-minors.
	if same := len(rows) - len(differing(rows)); same != 21 {
		t.Errorf("%d rows are the same as the double's, want 21: %+v", same, rows)
	}
}
