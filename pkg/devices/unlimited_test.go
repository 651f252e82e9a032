// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// What is held back to spread shares can be told from what pods without a claim hold.
func TestWhatIsHeldBackIsNotReserved(t *testing.T) {
	held := map[string]gpu.Amount{"GPU-0": {Units: 4, Shares: 1}, "GPU-1": {Units: 99, Shares: 99}}
	o := devices.Options{Pool: "p", Mode: mode.Share, Slots: 20, Room: map[string]gpu.Amount{
		"GPU-1": {Units: 11, Cores: 100, Shares: 19}}, Limits: held}
	built := devices.Build(plainGPUs(2), o).Pools["p"].Slices[0].Devices
	var got [][4]int64
	for i := range built {
		d := &built[i]
		memory, slots := d.Capacity[v1alpha1.CapMemory].Value, devices.Unlimited(d)[v1alpha1.CapSlots].Value
		units, _, closed := devices.Reserved(d)
		if closed {
			t.Errorf("%s is closed", d.Name)
		}
		all := devices.Unlimited(d)[v1alpha1.CapMemory].Value
		got = append(got, [4]int64{memory.Value() >> 30, all.Value() >> 30, slots.Value(), units})
	}
	expect.Equal(t, [][4]int64{{4, 15, 20, 0}, {11, 11, 19, 4}}, got, "GiB offered, GiB and shares at all, GiB reserved")
	whole := devices.Build(plainGPUs(1), devices.Options{Pool: "p", Mode: mode.Exclusive}).Pools["p"].Slices[0].Devices[0]
	expect.Equal(t, whole.Capacity, devices.Unlimited(&whole), "of a whole GPU")
}
