// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func hook(path string, args ...string) *specs.Hook {
	return &specs.Hook{HookName: "createContainer", Path: path, Args: append([]string{"nvidia-cdi-hook"}, args...)}
}

// TestSpecJoinsHooks: a container waits for one process, not for one per hook, and gets
// every hook of the devices it uses, in their order.
func TestSpecJoinsHooks(t *testing.T) {
	const own, nvidia, check = "/plugin/gpu-cdi-hook", "/plugin/nvidia-cdi-hook", "/plugin/gpu-mps-check"
	commonOf := func(path string) specs.ContainerEdits {
		return specs.ContainerEdits{Hooks: []*specs.Hook{
			hook(path, "create-symlinks", "--link", "a::b"), hook(path, "update-ldcache", "--folder", "/lib"),
		}}
	}
	device := func(name, path string) specs.Device {
		return specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{
			Env: []string{"A=b"}, Hooks: []*specs.Hook{hook(path, "create-symlinks", "--link", name+"::c"), hook(check, "dir")},
		}}
	}
	calls := func(hooks []*specs.Hook) [][]string {
		var out [][]string
		for _, h := range hooks {
			out = append(out, append([]string{h.Path}, h.Args[1:]...))
		}
		return out
	}
	type want struct {
		common  [][]string
		devices [][][]string
	}
	for name, test := range map[string]struct {
		path    string
		devices []string
		want    want
	}{
		"one device": {own, []string{"x"}, want{
			common: [][]string{{own, "create-symlinks", "--link", "a::b", "--then", "update-ldcache", "--folder", "/lib",
				"--then", "create-symlinks", "--link", "x::c"}},
			devices: [][][]string{{{check, "dir"}}},
		}},
		"two devices, of which a container may use one": {own, []string{"x", "y"}, want{
			common: [][]string{{own, "create-symlinks", "--link", "a::b", "--then", "update-ldcache", "--folder", "/lib"}},
			devices: [][][]string{
				{{own, "create-symlinks", "--link", "x::c"}, {check, "dir"}},
				{{own, "create-symlinks", "--link", "y::c"}, {check, "dir"}},
			},
		}},
		"NVIDIA's program, which runs one at a time": {nvidia, []string{"x"}, want{
			common:  [][]string{{nvidia, "create-symlinks", "--link", "a::b"}, {nvidia, "update-ldcache", "--folder", "/lib"}},
			devices: [][][]string{{{nvidia, "create-symlinks", "--link", "x::c"}, {check, "dir"}}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			common := commonOf(test.path)
			var devices []specs.Device
			for _, d := range test.devices {
				devices = append(devices, device(d, test.path))
			}
			for range 2 { // the common edits are every claim's: nothing of them may change
				s, err := Spec(common, devices)
				expect.NoError(t, err)
				got := want{common: calls(s.ContainerEdits.Hooks)}
				for _, d := range s.Devices {
					got.devices = append(got.devices, calls(d.ContainerEdits.Hooks))
				}
				expect.Equal(t, test.want, got, "hooks")
			}
		})
	}
}
