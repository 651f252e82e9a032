// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// used are GPUs of 15 GiB of which so much is taken; what is negative takes no claim.
func used(units ...int64) []placement.GPU {
	var gpus []placement.GPU
	for i, u := range units {
		gpus = append(gpus, placement.GPU{Index: i, Memory: 15, Used: max(u, -u), Full: u < 0})
	}
	return gpus
}

func TestOrder(t *testing.T) {
	unlike := []placement.GPU{
		{Index: 0, Memory: 40, Used: 20},
		{Index: 1, Memory: 80, Used: 30},
		{Index: 2, Memory: 80, Used: 40},
		{Index: 3, Memory: 40, Used: 25},
	}
	for name, test := range map[string]struct {
		gpus           []placement.GPU
		packed, spread []int
	}{
		"nothing taken":        {used(0, 0, 0, 0), []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		"as ACK's document":    {used(3, 9, 0, 0), []int{1, 0, 2, 3}, []int{2, 3, 0, 1}},
		"first where equal":    {used(0, 4, 4, 0), []int{1, 2, 0, 3}, []int{0, 3, 1, 2}},
		"some are full":        {used(-15, 4, -2, 0), []int{1, 0, 2, 3}, []int{3, 1, 2, 0}},
		"as a part of each":    {unlike, []int{3, 0, 2, 1}, []int{1, 0, 2, 3}},
		"a GPU without memory": {[]placement.GPU{{Index: 0, Full: true}, {Index: 1, Memory: 15}}, []int{0, 1}, []int{1, 0}},
		"no GPUs":              {nil, []int{}, []int{}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, test.packed, placement.Packed(test.gpus), "packed")
			expect.Equal(t, test.spread, placement.Spread(test.gpus), "spread")
		})
	}
}

// shared are GPUs that take 20 shares and have granted one of each amount, or none.
func shared(units ...int64) []placement.Shared {
	var gpus []placement.Shared
	for _, g := range used(units...) {
		granted := gpu.Amount{Units: g.Used, Shares: min(1, g.Used)}
		gpus = append(gpus, placement.Shared{GPU: g, Room: gpu.Amount{Units: 15, Shares: 20}, Granted: granted})
	}
	return gpus
}

func TestLimits(t *testing.T) {
	unlike := []placement.Shared{
		{
			GPU:     placement.GPU{Memory: 40, Used: 10},
			Room:    gpu.Amount{Units: 40, Shares: 20},
			Granted: gpu.Amount{Units: 10, Shares: 1},
		},
		{
			GPU:     placement.GPU{Memory: 80, Used: 24},
			Room:    gpu.Amount{Units: 80, Shares: 20},
			Granted: gpu.Amount{Units: 24, Shares: 2},
		},
	}
	reserved := shared(0, 0)
	reserved[0].Used, reserved[0].Room = 9, gpu.Amount{Units: 6, Shares: 19}
	// The scheduler counts 10 GiB on the second, which nobody has of it.
	counted := func(first int64) []placement.Shared {
		gpus := shared(first, 0)
		gpus[1].ByName, gpus[1].Granted = 10, gpu.Amount{Units: 10, Shares: 1}
		return gpus
	}
	of := func(units, shares int64) gpu.Amount { return gpu.Amount{Units: units, Shares: shares} }
	none, twoShares := placement.Wanted{}, placement.Wanted{One: gpu.Amount{Units: 6, Shares: 2}}
	lifted := func(times, units int64) placement.Wanted {
		return placement.Wanted{One: of(units, 1), Lifted: times}
	}
	twoLifted := placement.Wanted{One: of(6, 2), Lifted: 1}
	for name, test := range map[string]struct {
		gpus    []placement.Shared
		largest int64
		wanted  placement.Wanted
		// want is what each GPU takes beside what it has.
		want []gpu.Amount
	}{
		"nothing taken: a share of any size":  {shared(0, 0), 0, none, []gpu.Amount{of(15, 1), of(15, 1)}},
		"one is ahead: not that one":          {shared(4, 0, 0), 4, none, []gpu.Amount{{}, of(15, 1), of(15, 1)}},
		"all are even":                        {shared(4, 4), 4, none, []gpu.Amount{of(11, 1), of(11, 1)}},
		"ahead by less than a share":          {shared(5, 2, 3), 5, none, []gpu.Amount{of(2, 1), of(13, 1), of(4, 1)}},
		"a full one is not behind":            {shared(-1, 4, 6), 6, none, []gpu.Amount{{}, of(11, 1), of(4, 1)}},
		"all full":                            {shared(-15, -15), 15, none, []gpu.Amount{{}, {}}},
		"by the part of each":                 {unlike, 20, none, []gpu.Amount{of(30, 1), of(16, 1)}},
		"reserved without a claim":            {reserved, 0, none, []gpu.Amount{of(1, 1), of(15, 1)}},
		"counted by its name":                 {counted(0), 10, none, []gpu.Amount{of(15, 1), of(5, 1)}},
		"nobody waits for it":                 {counted(9), 2, none, []gpu.Amount{of(6, 1), of(5, 1)}},
		"but up to it":                        {counted(11), 2, none, []gpu.Amount{of(1, 1), of(5, 1)}},
		"two containers wait":                 {shared(0, 0, 4), 4, twoShares, []gpu.Amount{of(6, 2), of(6, 2), of(2, 2)}},
		"one that names a GPU":                {shared(4, 0), 4, lifted(1, 3), []gpu.Amount{of(11, 1), of(15, 2)}},
		"one beside another that never came":  {shared(0, 4), 4, lifted(1, 4), []gpu.Amount{of(15, 2), of(11, 1)}},
		"many at once":                        {shared(0, 4), 4, lifted(4, 4), []gpu.Amount{of(15, 5), of(11, 4)}},
		"two containers that name a GPU":      {shared(4, 0), 4, twoLifted, []gpu.Amount{of(11, 2), of(15, 4)}},
		"one that is too large for it":        {shared(4, 0), 4, lifted(4, 12), []gpu.Amount{{}, of(15, 5)}},
		"a GPU that takes none is not lifted": {shared(-4, 0), 4, lifted(1, 1), []gpu.Amount{{}, of(15, 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []gpu.Amount
			for i, limit := range placement.Limits(test.gpus, test.largest, test.wanted) {
				got = append(got, placement.More(limit, test.gpus[i].Granted))
			}
			expect.Equal(t, test.want, got, "more")
		})
	}
}
