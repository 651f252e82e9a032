// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

func simnode(t *testing.T, arguments ...string) error {
	t.Helper()
	return command().Run(t.Context(), append([]string{"simnode"}, arguments...))
}

func TestFault(t *testing.T) {
	testneeds.DeviceNodes(t)
	spec, err := sim.Load("../../../../demo/machines/a10x4.yaml")
	expect.NoError(t, err)
	// NVML's order is against that of the devices' names.
	slices.Reverse(spec.GPUs)
	root := t.TempDir()
	expect.NoError(t, spec.WriteRoot(root))
	told := func() string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(root, sim.ToldFile))
		expect.NoError(t, err)
		return string(content)
	}
	for _, tc := range []struct {
		arguments, says, lacks string
	}{
		{"gpu-3 xid=79 lost", "gpu.0.every = !15", "gpu.3.every"},
		{"3 heal", "gpu.0.field.230 = 0", "every"},
		{"gpu-0 hang", "gpu.3.every = !hang", "gpu.0.every"},
		{"gpu-0 xid=31", " 3 8 31", " 3 8000 0"},
		{"gpu-0 ecc=2", "gpu.3.ecc.uncorrected = 2", " 3 8000 0"},
		{"gpu-0 recovery=2", "gpu.3.field.230 = 2", "gpu.0.field.230 = 2"},
		{"driver-upgrade=580.95.05", "version = 580.95.05", "570.124.06"},
		{"driver-reload", "version = 580.95.05", "memoryLimits"},
	} {
		expect.NoError(t, simnode(t, slices.Concat([]string{"fault", "--root", root}, strings.Fields(tc.arguments))...))
		if got := told(); !strings.Contains(got, tc.says) || strings.Contains(got, tc.lacks) {
			t.Errorf("fault %s: want %q and not %q in\n%s", tc.arguments, tc.says, tc.lacks, got)
		}
	}
	before := told()
	for arguments, says := range map[string]string{
		"":                   "want a GPU and what happens to it",
		"gpu-1":              "want a GPU and what happens to it",
		"gpu-4 lost":         "no GPU \"gpu-4\": want gpu-0 to gpu-3",
		"gpu--1 lost":        "no GPU",
		"gpu-1 xid":          "xid= takes a number",
		"gpu-1 xid=-1":       "xid= takes a number",
		"gpu-1 lost explode": "unknown fault \"explode\"",
		"gpu-1 recovery=9":   "must be between 0 and 7",
		"driver-upgrade=../": "driver.version",
		// The library that is there has lost what is new since then.
		"driver-upgrade=615.71.09": "lacks what is new since release 615",
	} {
		err := simnode(t, slices.Concat([]string{"fault", "--root", root}, strings.Fields(arguments))...)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("fault %q: %v, want %q", arguments, err, says)
		}
	}
	if told() != before {
		t.Error("a fault that is refused changed the machine")
	}
}
