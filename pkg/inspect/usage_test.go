// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	claims "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// The table adds up what the API server shows, also of GPUs that are gone; the plugin's
// check against overcommitment what it has resolved. Both have to come to the same.
func TestTableAgreesWithThePluginsAccounts(t *testing.T) {
	const gpus, memoryMiB = 4, 16130
	random := rand.New(rand.NewPCG(1, 2))
	for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology} {
		t.Run(string(m), func(t *testing.T) {
			for range 50 {
				slices := publish("n1", m, newGPUs(gpus, "V100", memoryMiB)...)
				allocated := randomClaims(random, m, slices)
				compareAccounts(t, slices, allocated, gpus, memoryMiB)
			}
		})
	}
}

// randomClaims allocates devices of the slices, without asking whether they are free.
func randomClaims(random *rand.Rand, m mode.Mode, slices []*resourceapi.ResourceSlice) []*resourceapi.ResourceClaim {
	var out []*resourceapi.ResourceClaim
	for i := range random.IntN(8) {
		var results []string
		for range 1 + random.IntN(3) {
			slice := slices[random.IntN(len(slices))]
			if len(slice.Spec.Devices) == 0 {
				continue
			}
			text := "n1 " + slice.Spec.Devices[random.IntN(len(slice.Spec.Devices))].Name
			if strings.HasSuffix(text, "-monitor") {
				continue // the plugin grants none to claims
			}
			if m.Shared() {
				text += fmt.Sprintf(" %d", 1+random.IntN(15))
			}
			if m == mode.CoreMem {
				text += fmt.Sprintf(" %d", 5*(1+random.IntN(20)))
			}
			results = append(results, text)
		}
		if len(results) > 0 {
			out = append(out, claim(fmt.Sprintf("team/p%d", i), results...))
		}
	}
	return out
}

func compareAccounts(
	t *testing.T, slices []*resourceapi.ResourceSlice, allocated []*resourceapi.ResourceClaim, gpus int, memoryMiB int64,
) {
	t.Helper()
	uuid := func(index int) string { return fmt.Sprintf("GPU-n1-%d", index) }
	machine := &gpu.Machine{}
	for index := range gpus {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: index, UUID: uuid(index), MemoryMiB: memoryMiB})
	}
	var accounts []usage.Claim
	for _, c := range allocated {
		for i := range c.Status.Allocation.Devices.Results {
			c.Status.Allocation.Devices.Results[i].ShareID = ptr.To(types.UID(fmt.Sprintf("share-%d", i)))
		}
		grants, err := claims.Grants(c, v1alpha1.PoolName("n1"), machine)
		expect.NoError(t, err)
		accounts = append(accounts, usage.Claim{Namespace: c.Namespace, Name: c.Name, Grants: grants})
	}
	used := usage.Of(accounts, func(string) held.GPU { return held.GPU{} })
	table := inspect.New(inspect.Input{Slices: slices, Claims: allocated})
	if len(table.Nodes) != 1 || len(table.Nodes[0].GPUs) != gpus {
		t.Fatalf("the table shows %+v", table.Nodes)
	}
	for _, shown := range table.Nodes[0].GPUs {
		want := used.GPU(uuid(shown.Index))
		if *shown.MemoryGiB.Allocated != want.Units || *shown.CoresPercent.Allocated != want.Cores {
			t.Errorf("GPU %d: the table shows %d GiB and %d %%, the plugin counts %d and %d", shown.Index,
				*shown.MemoryGiB.Allocated, *shown.CoresPercent.Allocated, want.Units, want.Cores)
		}
	}
}
