// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// modes are the measured modes. To the scheduler, modes with limits are the same as share.
func modes() []mode.Mode { return []mode.Mode{mode.Exclusive, mode.Share, mode.Topology, mode.Dynamic} }

// requestIn returns the request of each claim in a mode. It fits on every free node.
func requestIn(m mode.Mode) resourceapi.DeviceRequest {
	switch m {
	case mode.Exclusive:
		return harness.Exclusive("gpu", 1)
	case mode.Topology:
		return linked(4)
	default:
		return harness.Share("gpu", "1Gi")
	}
}

// linked is a request for a linked set of that many GPUs or, where there is
// none, for any.
func linked(size int) resourceapi.DeviceRequest {
	sub := func(name string, r resourceapi.DeviceRequest) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: r.Exactly.DeviceClassName,
			AllocationMode: r.Exactly.AllocationMode, Count: r.Exactly.Count}
	}
	return resourceapi.DeviceRequest{Name: "cards", FirstAvailable: []resourceapi.DeviceSubRequest{
		sub("linked", harness.Linked("", size, 1)), sub("any", harness.Linked("", 1, int64(size))),
	}}
}

// named returns the modes with these names, or all modes without a name.
func named(names []string) ([]mode.Mode, error) {
	if len(names) == 0 {
		return modes(), nil
	}
	var out []mode.Mode
	for _, name := range names {
		if !slices.Contains(modes(), mode.Mode(name)) {
			return nil, fmt.Errorf("--only %s: measured are %v", name, modes())
		}
		out = append(out, mode.Mode(name))
	}
	return out, nil
}
