// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"encoding/json"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// The status of a claim is read together with metrics and nvidia-smi: it has the index that the GPU has now.
func TestStatusOfAClaimOfAGPUWithAnotherIndex(t *testing.T) {
	a, store := agentWithClaims(t, 2)
	a.registry = isolation.NewRegistry(isolation.Config{})
	a.preparer = prepare.New(prepare.Options{Store: store, Isolation: a.registry})
	shifted := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-1", MemoryMiB: 16130}}}
	a.preparer.SetInventory(&prepare.Inventory{Machine: shifted, Base: preparetest.Base("")})
	claims, err := a.claimStatuses(t.Context())
	if err != nil || len(claims) != 2 {
		t.Fatalf("claims %+v, %v", claims, err)
	}
	var told v1alpha1.DeviceStatus
	expect.NoError(t, json.Unmarshal(claims[1].Devices[0].Data.Raw, &told))
	if device := claims[1].Devices[0].Device; device != "gpu-1-share" || told.GPUs[0].Index != 0 {
		t.Errorf("device %s has GPUs %+v, want index 0", device, told.GPUs)
	}
}
