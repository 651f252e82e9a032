// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const header = `"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig"`

func TestDecodeRejects(t *testing.T) {
	for name, tc := range map[string]struct{ raw, want string }{
		"unknown field":   {`{` + header + `,"isolationDisabled":true}`, `"isolationDisabled" (docs/reference.md#gpuconfig`},
		"wrong case":      {`{` + header + `,"DisableIsolation":true}`, `unknown field "DisableIsolation"`},
		"field twice":     {`{` + header + `,"env":"None","env":"None"}`, `duplicate field "env"`},
		"wrong type":      {`{` + header + `,"disableIsolation":"yes"}`, "disableIsolation"},
		"bad value":       {`{` + header + `,"env":"none"}`, `env is "none"`},
		"no container":    {`{` + header + `,"container":""}`, "container is empty"},
		"bad slice":       {`{` + header + `,"timeSlice":"short"}`, `timeSlice is "short"`},
		"little memory":   {`{` + header + `,"processMemory":"1Ki"}`, "use 1Mi or more"},
		"endless memory":  {`{` + header + `,"processMemory":"1e-999999999"}`, `amount "1e-999999999" has an exponent`},
		"endless number":  {`{` + header + `,"processMemory":1e999999999}`, `amount 1e999999999 has an exponent`},
		"no slice":        {`{` + header + `,"timeSlice":""}`, "use Default, Short, Medium or Long"},
		"unknown kind":    {`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"MigConfig"}`, `kind "MigConfig"`},
		"unknown version": {`{"apiVersion":"gpu.aliyun.com/v2","kind":"GpuConfig"}`, `apiVersion "gpu.aliyun.com/v2"`},
		"no header":       {`{"env":"None"}`, `apiVersion ""`},
		"not an object":   {`[]`, "not a JSON object"},
		"empty":           {``, "not a JSON object"},
		"cut off":         {`{` + header, "not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(tc.raw))
			expect.Error(t, err, tc.want)
		})
	}
}

func TestDecodeReadsAmounts(t *testing.T) {
	for text, want := range map[string]int64{`"16Gi"`: 16 << 30, `"1E"`: 1e18, `"2e9"`: 2e9, `16777216`: 16 << 20} {
		config, err := Decode([]byte(`{` + header + `,"processMemory":` + text + `}`))
		expect.NoError(t, err)
		if config.ProcessMemory == nil || config.ProcessMemory.Value() != want {
			t.Errorf("%s is read as %v", text, config.ProcessMemory)
		}
	}
}

func TestMergePrefersTheLater(t *testing.T) {
	class, err := Decode([]byte(`{` + header + `,"disableIsolation":true,"env":"None","timeSlice":"Long"}`))
	expect.NoError(t, err)
	claim, err := Decode([]byte(`{` + header + `,"disableIsolation":false,"timeSlice":"Short"}`))
	expect.NoError(t, err)
	got := Default().Merge(class).Merge(claim)
	if got.IsolationDisabled() {
		t.Error("the class's disableIsolation won over the claim's")
	}
	if got.TimeSlice == nil || *got.TimeSlice != TimeSliceShort {
		t.Errorf("timeSlice is %v, want the claim's", got.TimeSlice)
	}
	if got.LegacyEnv() {
		t.Error("the class's env was lost although the claim does not set it")
	}
	if d := Default(); d.IsolationDisabled() || !d.LegacyEnv() {
		t.Errorf("defaults are %+v", d)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{` + header + `,"disableIsolation":true,"env":"None"}`))
	f.Add([]byte(`{"apiVersion":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := Decode(raw)
		if err != nil {
			return
		}
		if config.Kind != Kind || config.APIVersion != APIVersion {
			t.Errorf("accepted %q as %s %s", raw, config.APIVersion, config.Kind)
		}
	})
}
