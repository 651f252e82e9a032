// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// DeviceName is the name of a GPU's device in a mode: "gpu-3" for the whole
// GPU, "gpu-3-share" and the like in the other modes. Names differ by mode so
// that an allocation of one mode can never be taken for one of another.
func DeviceName(index int, m mode.Mode) string {
	if m == mode.Exclusive {
		return fmt.Sprintf("gpu-%d", index)
	}
	return fmt.Sprintf("gpu-%d-%s", index, m)
}

// SetName is the name of the device of a linked set: "gpus-0-3" for the GPUs
// 0 and 3. The indices are ascending.
func SetName(indices []int) string {
	name := "gpus"
	for _, index := range indices {
		name += "-" + strconv.Itoa(index)
	}
	return name
}

// ParseDeviceName is the reverse of DeviceName, SetName and InstanceName: the indices of the
// device's GPUs, ascending, and its mode. A name that none of them would make is an
// error.
func ParseDeviceName(name string) (indices []int, m mode.Mode, err error) {
	if numbers, ok := strings.CutPrefix(name, "gpus-"); ok {
		indices, m = parseIndices(numbers), mode.Topology
		if len(indices) > 1 && SetName(indices) == name {
			return indices, m, nil
		}
	}
	if index, ok := parseInstanceName(name); ok {
		return []int{index}, mode.MIG, nil
	}
	rest, ok := strings.CutPrefix(name, "gpu-")
	number, suffix, named := strings.Cut(rest, "-")
	m = mode.Exclusive
	if named {
		m = mode.Mode(suffix)
	}
	index, convErr := strconv.Atoi(number)
	if !ok || convErr != nil || !hasDevices(m) || DeviceName(index, m) != name {
		return nil, "", fmt.Errorf("device name %q is not one that this driver publishes", name)
	}
	return []int{index}, m, nil
}

// hasDevices reports whether devices are published in the mode.
func hasDevices(m mode.Mode) bool {
	return m == mode.Exclusive || m == mode.Topology || m == mode.Monitor || m.Shared()
}

// parseIndices returns the ascending numbers, nil if they are not.
func parseIndices(numbers string) []int {
	var indices []int
	for number := range strings.SplitSeq(numbers, "-") {
		index, err := strconv.Atoi(number)
		if err != nil {
			return nil
		}
		indices = append(indices, index)
	}
	if !slices.IsSorted(indices) || len(slices.Compact(slices.Clone(indices))) < len(indices) {
		return nil
	}
	return indices
}
