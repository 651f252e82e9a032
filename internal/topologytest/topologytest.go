// SPDX-License-Identifier: Apache-2.0

// Package topologytest says what tests of mode topology compare with: the best
// GPUs, found by looking at all there are.
package topologytest

import (
	"context"
	"fmt"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// Machine reads a simulated machine through the code that reads real ones.
func Machine(ctx context.Context, path string) (*gpu.Machine, error) {
	spec, err := sim.Load(path)
	if err != nil {
		return nil, err
	}
	return Read(ctx, spec)
}

// Read is Machine for one that is not in a file.
func Read(ctx context.Context, spec *sim.Spec) (*gpu.Machine, error) {
	lib := spec.NVML()
	if ret := lib.Init(); ret != 0 {
		return nil, fmt.Errorf("initialise the simulated NVML: %v", ret)
	}
	return nvml.Read(ctx, lib, nvml.Options{})
}

// Best returns the k of the free GPUs, which are in ascending order, with the
// largest smallest bandwidth between any two of them, then the largest sum, then
// the lowest indices; nil if there are not enough.
func Best(m *gpu.Machine, free []int, k int) []int {
	var best []int
	bestMin, bestSum := 0, 0
	for mask := range 1 << len(free) {
		var set []int
		for i, g := range free {
			if mask&(1<<i) != 0 {
				set = append(set, g)
			}
		}
		if len(set) != k {
			continue
		}
		smallest, sum := Bandwidth(m, set)
		if best == nil || smallest > bestMin || smallest == bestMin && (sum > bestSum || sum == bestSum && lower(set, best)) {
			best, bestMin, bestSum = set, smallest, sum
		}
	}
	return best
}

// Bandwidth is the smallest bandwidth between any two of the GPUs, and the sum
// over all pairs.
func Bandwidth(m *gpu.Machine, gpus []int) (smallest, sum int) {
	first := true
	for i, a := range gpus {
		for _, b := range gpus[i+1:] {
			gbps := 0
			for _, l := range m.Links {
				if l.A == a && l.B == b {
					gbps = l.GBps
				}
			}
			if first || gbps < smallest {
				smallest, first = gbps, false
			}
			sum += gbps
		}
	}
	return smallest, sum
}

func lower(a, b []int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
