// SPDX-License-Identifier: Apache-2.0

package timeslice

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// program makes an nvidia-smi that notes its arguments and then does what the shell code says.
func program(t *testing.T, code string) (smi *SMI, noted func() string) {
	t.Helper()
	dir := t.TempDir()
	path, notes := filepath.Join(dir, "nvidia-smi"), filepath.Join(dir, "notes")
	script := "#!/bin/sh\necho \"$@\" >>" + notes + "\n" + code
	expect.NoError(t, os.WriteFile(path, []byte(script), 0o700))
	return &SMI{Root: "/", Path: path}, func() string {
		content, err := os.ReadFile(notes)
		expect.NoError(t, err)
		return string(content)
	}
}

// The numbers are those of NVIDIA's nvidia-smi compute-policy.
func TestSetRunsNvidiaSMI(t *testing.T) {
	smi, noted := program(t, "")
	for _, slice := range v1alpha1.TimeSlices() {
		expect.NoError(t, smi.Set(t.Context(), "GPU-a", slice))
	}
	want := "compute-policy -i GPU-a --set-timeslice 0\ncompute-policy -i GPU-a --set-timeslice 1\n" +
		"compute-policy -i GPU-a --set-timeslice 2\ncompute-policy -i GPU-a --set-timeslice 3\n"
	expect.Equal(t, want, noted(), "it ran")
}

func TestSetSaysWhyNot(t *testing.T) {
	unable, _ := program(t, "echo 'Not Supported'; exit 3")
	for name, tc := range map[string]struct {
		smi  *SMI
		want []string
	}{
		"a GPU that cannot": {unable,
			[]string{"setting the time slice of GPU GPU-a to Short", "no time slice can be set: Not Supported"}},
		"no program": {&SMI{Root: "/", Path: "/no/nvidia-smi"},
			[]string{"the driver root has no /no/nvidia-smi", "no time slice can be set"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, tc.smi.Set(t.Context(), "GPU-a", v1alpha1.TimeSliceShort), tc.want...)
		})
	}
}
