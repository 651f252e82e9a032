// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metafile"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// After a boot without GPU 1 the GPU that was GPU 2 is GPU 1. The claim that has it keeps it, its containers and users
// are told its index of now, and its record stays as it was.
func TestClaimOfAGPUWithAnotherIndex(t *testing.T) {
	n := newNode(t)
	c := reservedFor(sharesOf("u1", 2, 3), "p0")
	devices := n.takes(t, c)
	record := filepath.Join(n.stateDir, "u1.json")
	before, err := os.ReadFile(record)
	expect.NoError(t, err)
	dir := t.TempDir()
	shifted := machine()
	shifted.GPUs = []gpu.GPU{shifted.GPUs[0], shifted.GPUs[2]}
	shifted.GPUs[1].Index = 1
	n.restart(t)
	n.options.Metadata = metafile.Dir(dir)
	n.SetInventory(&Inventory{Machine: shifted,
		Base: fakeBase{of: shifted, missing: map[string]error{"GPU-2": errors.New("no /dev/nvidia1")}}})
	expect.NoError(t, n.Recover(t.Context()))
	if env := n.env(t, devices[0].CDIDeviceIDs[0]); !slices.Contains(env, "ALIYUN_COM_GPU_MEM_IDX=1") {
		t.Errorf("environment %v, want index 1", env)
	}
	content, err := os.ReadFile(filepath.Join(dir, "u1", "r0.json"))
	expect.NoError(t, err)
	var told metadatav1beta1.DeviceMetadata
	expect.NoError(t, json.Unmarshal(content, &told))
	if index := told.Requests[0].Devices[0].Attributes["index"].IntValue; ptr.Deref(index, -1) != 1 {
		t.Errorf("the container is told %s, want index 1", content)
	}
	if err := n.Usable([]state.Record{n.recordOf(t, "u1")})[0]; err == nil || !strings.HasPrefix(err.Error(), "GPU 1: ") {
		t.Errorf("users are told %v, want it of GPU 1", err)
	}
	if after, err := os.ReadFile(record); err != nil || string(after) != string(before) {
		t.Errorf("record %s, %v; want it as it was: %s", after, err, before)
	}
}
