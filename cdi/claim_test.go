// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const uid = types.UID("8f6d1d9e-6c3c-4c0c-8a0e-5f6d1d9e6c3c")

func TestDeviceNames(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range []string{
		DeviceName(uid, "gpu", "gpu-0", ""),
		DeviceName(uid, "gpu", "gpu-0-share", "3b1e"),
		DeviceName(uid, "gpu", "gpu-0-share", "3b1f"),
		DeviceName(uid, "gpu/linked", "gpu-1", ""),
		DeviceName(uid, "gpu/any", "gpu-1", ""),
	} {
		expect.NoErrorf(t, parser.ValidateDeviceName(n), "%s", n)
		if seen[n] {
			t.Errorf("%s stands for two allocations", n)
		}
		seen[n] = true
	}
}

// The container runtime reads the directory with the upstream library: what it
// sees there is what counts.
func TestSpecIsSeenByTheRuntime(t *testing.T) {
	dir := Dir(filepath.Join(t.TempDir(), "made", "on", "demand"))
	device := DeviceName(uid, "gpu", "gpu-0", "")
	s, err := Spec(specs.ContainerEdits{Env: []string{"A=1"}, DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidiactl"}}},
		[]specs.Device{{Name: device, ContainerEdits: specs.ContainerEdits{Env: []string{"B=2"},
			DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0", HostPath: "/driver/dev/nvidia0"}}}}})
	expect.NoError(t, err)
	name := SpecName(uid)
	expect.NoError(t, dir.Write(name, s))
	cache, err := upstream.NewCache(upstream.WithSpecDirs(string(dir)), upstream.WithAutoRefresh(false))
	expect.NoError(t, err)
	expect.Equal(t, []string{QualifiedName(device)}, cache.ListDevices(), "devices")
	uids, err := dir.Claims()
	if err != nil || len(uids) != 1 || uids[0] != uid {
		t.Errorf("claims %v, %v", uids, err)
	}
	nodes, err := dir.Nodes(name)
	if diff := expect.Diff([]string{"/dev/nvidia0"}, nodes); diff != nil || err != nil {
		t.Errorf("%v, device nodes of the devices %v", err, diff)
	}
	expect.NoError(t, dir.Remove(name))
	if there, err := dir.Exists(name); there || err != nil {
		t.Errorf("the spec is still there: %v, %v", there, err)
	}
	expect.NoErrorf(t, dir.Remove(name), "second removal")
}

func TestClaimsFindsLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{SpecName(uid) + ".json.tmp", "nvidia.com-gpu.yaml", "gpu.aliyun.com-claim_.json",
		"gpu.aliyun.com-other_x.json"} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
	}
	uids, err := Dir(dir).Claims()
	if err != nil || len(uids) != 1 || uids[0] != uid {
		t.Errorf("claims %v, %v: want just %s", uids, err, uid)
	}
	if uids, err := Dir(filepath.Join(dir, "missing")).Claims(); len(uids) != 0 || err != nil {
		t.Errorf("a directory that does not exist yet: %v, %v", uids, err)
	}
}

func TestInvalidSpecIsNotWritten(t *testing.T) {
	good := specs.Device{Name: "good", ContainerEdits: specs.ContainerEdits{Env: []string{"A=1"}}}
	for name, devices := range map[string][]specs.Device{
		"no device":     nil,
		"bad name":      {{Name: "bad name"}},
		"twice":         {good, good},
		"bad env":       {{Name: "x", ContainerEdits: specs.ContainerEdits{Env: []string{"no equals sign"}}}},
		"node, no path": {{Name: "x", ContainerEdits: specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := Dir(t.TempDir())
			err := dir.Write(SpecName(uid), &specs.Spec{Version: "0.6.0", Kind: Kind, Devices: devices})
			if there, _ := dir.Exists(SpecName(uid)); there || err == nil {
				t.Errorf("written: %v, error: %v", there, err)
			}
		})
	}
}
