// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// names are requests and the names of their templates.
var names = map[string]Request{
	"gpushare.mem.main.3": {Kind: Memory, Count: 1, Containers: []Container{{Name: "main", MemoryGiB: 3}}},
	"gpushare.mem.c0.1.c1.7": {Kind: Memory, Count: 1,
		Containers: []Container{{Name: "c0", MemoryGiB: 1}, {Name: "c1", MemoryGiB: 7}}},
	"gpushare.mem.0.1.1.7": {Kind: Memory, Count: 1,
		Containers: []Container{{Name: "0", MemoryGiB: 1}, {Name: "1", MemoryGiB: 7}}},
	"gpushare.mem-x4.main.8": {Kind: Memory, Count: 4, Containers: []Container{{Name: "main", MemoryGiB: 8}}},
	"gpushare.mem-whole.main.15": {Kind: Memory, Count: 1, Whole: true,
		Containers: []Container{{Name: "main", MemoryGiB: 15}}},
	"gpushare.mem-x2-whole.main.30": {Kind: Memory, Count: 2, Whole: true,
		Containers: []Container{{Name: "main", MemoryGiB: 30}}},
	"gpushare.core.main.10-30": {Kind: CoreMemory, Count: 1,
		Containers: []Container{{Name: "main", MemoryGiB: 10, CoresPercent: 30}}},
	"gpushare.core-x2.m-1.4-200": {Kind: CoreMemory, Count: 2,
		Containers: []Container{{Name: "m-1", MemoryGiB: 4, CoresPercent: 200}}},
	"gpushare.mem-x2.c0.2.c1.6": {Kind: Memory, Count: 2,
		Containers: []Container{{Name: "c0", MemoryGiB: 2}, {Name: "c1", MemoryGiB: 6}}},
	"gpushare.mem-x8.main.1120": {Kind: Memory, Count: 8, Containers: []Container{{Name: "main", MemoryGiB: 1120}}},
	"gpushare.gpu.main.2":       {Kind: GPUs, Count: 1, Containers: []Container{{Name: "main", GPUs: 2}}},
	"gpushare.nvidia.main.2":    {Kind: NVIDIA, Count: 1, Containers: []Container{{Name: "main", GPUs: 2}}},
	"gpushare.cpu.main.8":       {Kind: CPUs, Count: 1, Containers: []Container{{Name: "main", CPUs: 8}}},
	"gpushare.gpu-cpu64.main.8": {Kind: GPUs, Count: 1, Containers: []Container{{Name: "main", GPUs: 8, CPUs: 64}}},
	"gpushare.mem-on--cgpu.main.3": {Kind: Memory, Count: 1, On: []string{"cgpu"},
		Containers: []Container{{Name: "main", MemoryGiB: 3}}},
	"gpushare.core-x2-cpu4-on--model-a10--nomodel-a100.main.4-20": {Kind: CoreMemory, Count: 2,
		On:         []string{"model-a10", "nomodel-a100"},
		Containers: []Container{{Name: "main", MemoryGiB: 4, CoresPercent: 20, CPUs: 4}}},
	"gpushare.nvidia-on--uuid-gpu-1.main.2": {Kind: NVIDIA, Count: 1, On: []string{"uuid-gpu-1"},
		Containers: []Container{{Name: "main", GPUs: 2}}},
	"gpushare.mem-x2-whole-cpu6.c0.14.c1.16": {Kind: Memory, Count: 2, Whole: true,
		Containers: []Container{{Name: "c0", MemoryGiB: 14, CPUs: 6}, {Name: "c1", MemoryGiB: 16}}},
}

func TestNamesSayTheRequest(t *testing.T) {
	for name, request := range names {
		expect.Equal(t, name, request.Name(), "%+v has the name", request)
		got, err := ParseName(name)
		expect.NoError(t, err)
		expect.Equal(t, request, got, "%s", name)
	}
}

func TestNamesThatAreNoRequest(t *testing.T) {
	for name, want := range map[string]string{
		"gpushare":                               "not of the form",
		"gpushare.mem":                           "not of the form",
		"gpushare.mem.main":                      "not of the form",
		"other.mem.main.3":                       "not of the form",
		"gpushare.tflops.main.3":                 `kind "tflops" is none of`,
		"gpushare.mem-fast.main.3":               `a part "fast" that means nothing`,
		"gpushare.mem-whole-x2.main.4":           `a part "x2" that means nothing`,
		"gpushare.mem-x.main.4":                  "number of GPUs",
		"gpushare.mem-x1.main.4":                 `would have to be "gpushare.mem.main.4"`,
		"gpushare.mem-x33.main.33":               "1 to 32 GPUs, not 33",
		"gpushare.mem-x-2.main.4":                "number of GPUs",
		"gpushare.mem.main.03":                   `would have to be "gpushare.mem.main.3"`,
		"gpushare.mem.main.+3":                   "would have to be",
		"gpushare.mem.main.0":                    "aliyun.com/gpu-mem must be from 1 to 999, not 0",
		"gpushare.mem.main.1000":                 "from 1 to 999, not 1000",
		"gpushare.mem-x4.main.4000":              "from 1 to 3996, not 4000",
		"gpushare.mem.main.99999999999999999999": "is not a whole number",
		"gpushare.mem.Main.3":                    `container name "Main"`,
		"gpushare.mem..3":                        `container name ""`,
		"gpushare.mem.main.3-20":                 "has 2 amounts",
		"gpushare.core.main.3":                   "has 1 amounts",
		"gpushare.core.main.3-7":                 "must be a multiple of 5 on each GPU, not 7",
		"gpushare.core.main.3-0":                 "from 1 to 100, not 0",
		"gpushare.core.main.3-105":               "from 1 to 100, not 105",
		"gpushare.core-x4.main.4-10": "invalid replica for resource " +
			"aliyun.com/gpu-core.percentage,because 10 / 4 = 2.5",
		"gpushare.mem-x2.main.7": "invalid replica for resource aliyun.com/gpu-mem,because " +
			"7 / 2 = 3.5",
		"gpushare.mem-x2.a.2.b.3": "invalid replica for resource aliyun.com/gpu-mem,because " +
			"3 / 2 = 1.5",
		"gpushare.mem-x16.a.16.b.16.c.16":                       "1 to 32 shares, not 48",
		"gpushare.mem-x2." + strings.Repeat("a", 57) + ".2.b.2": "may have 56",
		"gpushare.cpu.main.0":                                   "CPUs must be from 1 to 4096, not 0",
		"gpushare.cpu.main.4097":                                "CPUs must be from 1 to 4096, not 4097",
		"gpushare.cpu.a.1.b.2":                                  "for one container",
		"gpushare.cpu-x2.main.2":                                "for no GPU",
		"gpushare.cpu-cpu2.main.2":                              `a part "cpu2" that means nothing`,
		"gpushare.mem-cpu.main.2":                               "number of CPUs",
		"gpushare.mem-cpu0.main.2":                              `would have to be "gpushare.mem.main.2"`,
		"gpushare.mem-cpu-1.main.2":                             "number of CPUs",
		"gpushare.mem-cpu4097.main.2":                           "CPUs must be from 1 to 4096, not 4097",
		"gpushare.mem-cpu2.main.2.cpus.1":                       "the name of the request for CPUs",
		"gpushare.mem-x32-cpu2.main.32":                         "1 to 31 shares, not 32",
		"gpushare.gpu-x2.main.2":                                "whole GPUs are not spread",
		"gpushare.gpu-whole.main.2":                             "whole GPUs are whole",
		"gpushare.gpu.main.33":                                  "from 1 to 32, not 33",
		"gpushare.gpu.a.16.b.17":                                "1 to 32 GPUs, not 33",
		"gpushare.nvidia.a.16.b.17":                             "1 to 32 GPUs, not 33",
		"gpushare.nvidia.a.0":                                   "nvidia.com/gpu must be from 1 to 32, not 0",
		"gpushare.nvidia-x2.a.2":                                "whole GPUs are not spread",
		"gpushare.nvidia-whole.a.2":                             "whole GPUs are whole",
		"gpushare.nvidia-cpu2.a.2":                              `a part "cpu2" that means nothing`,
		"gpushare.mem-on.a.2":                                   `a part "on" that means nothing`,
		"gpushare.mem-on--.a.2":                                 `word "" chooses no GPUs`,
		"gpushare.mem-on--fast.a.2":                             `word "fast" chooses no GPUs`,
		"gpushare.mem-on--model-.a.2":                           `word "model-" chooses no GPUs`,
		`gpushare.mem-on--model-".a.2`:                          `word "model-\"" chooses no GPUs`,
		"gpushare.mem-on--cgpu--mps.a.2":                        "one mode can be chosen",
		"gpushare.core-on--cgpu.a.2-5":                          "for memory alone",
		"gpushare.nvidia-on--mps.a.2":                           "for memory alone",
		"gpushare.gpu-on--model-a10.a.2":                        "chooses no GPUs",
		"gpushare.cpu-on--model-a10.a.2":                        "chooses no GPUs",
		"gpushare.mem" + strings.Repeat(".a.1", 33):             "1 to 32 containers, not 33",
	} {
		if _, err := ParseName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
