// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// After a boot without one of them GPUs have other indices than those by which their devices are named.
func TestCurrent(t *testing.T) {
	shifted := &gpu.Machine{
		GPUs:        []gpu.GPU{{Index: 0, UUID: "a"}, {Index: 1, UUID: "c"}},
		Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 2, UUID: "d"}}},
		Faults:      []gpu.Fault{{Index: 3, UUID: "e"}, {Index: 4}},
	}
	for name, test := range map[string]struct {
		granted []GPU
		machine *gpu.Machine
		want    []int
	}{
		"as it was":            {[]GPU{{Index: 0, UUID: "a"}}, shifted, []int{0}},
		"another one":          {[]GPU{{Index: 2, UUID: "c"}}, shifted, []int{1}},
		"some of a set":        {[]GPU{{Index: 0, UUID: "a"}, {Index: 2, UUID: "c"}}, shifted, []int{0, 1}},
		"its instance":         {[]GPU{{Index: 3, UUID: "MIG-x", MIG: &Instance{ParentUUID: "d"}}}, shifted, []int{2}},
		"one still to be made": {[]GPU{{Index: 3, MIG: &Instance{ParentUUID: "d", Made: true}}}, shifted, []int{2}},
		"lost":                 {[]GPU{{Index: 4, UUID: "e"}}, shifted, []int{3}},
		"gone":                 {[]GPU{{Index: 1, UUID: "b"}}, shifted, []int{1}},
		"unread":               {[]GPU{{Index: 2, UUID: "c"}}, nil, []int{2}},
		"nothing":              {nil, shifted, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var grants, before []Grant
			for _, g := range test.granted {
				grants, before = append(grants, Grant{Device: "gpu", GPU: g}), append(before, Grant{Device: "gpu", GPU: g})
			}
			var got []int
			for i, g := range Current(grants, test.machine) {
				got = append(got, g.GPU.Index)
				if g.GPU.UUID != test.granted[i].UUID || g.Device != "gpu" {
					t.Errorf("the grant of %+v is %+v", test.granted[i], g)
				}
			}
			expect.Equal(t, test.want, got, "indices")
			expect.Equal(t, before, grants, "what was granted has changed")
		})
	}
}
