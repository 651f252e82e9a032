// SPDX-License-Identifier: Apache-2.0

package fromack

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// What GPU feature discovery says of a node, beside the amounts that NVIDIA's device plugin shows: with the strategy
// "single" nvidia.com/gpu can be a MIG instance, and then the product's name has "-MIG-" in it. The count is that of
// GPUs, each of which the device plugin shows as so many replicas where it has them shared. Memory of GPUs and
// instances is in MiB (source: k8s-device-plugin).
const (
	labelStrategy  = "nvidia.com/mig.strategy"
	labelProduct   = "nvidia.com/gpu.product"
	labelGPUMemory = "nvidia.com/gpu.memory"
	labelGPUCount  = "nvidia.com/gpu.count"
	labelReplicas  = "nvidia.com/gpu.replicas"
)

// mostInstances is how many instances a node may say that it has, mostSlices how many compute slices
// a GPU has at most.
const mostInstances, mostSlices = 8 * mostGPUs, 7

// wholeInstance is a profile of a whole GPU instance, "1g.10gb+me": compute slices and memory in GB. That of a part of
// one begins with its own slices, "1c.3g.40gb".
var wholeInstance = regexp.MustCompile(`^([1-9])g\.([1-9][0-9]{0,3})gb([+-][a-z.]+)?$`)

// InstanceOf is an instance of a profile, with the memory in the profile's name; false where that is not one of a
// whole instance. The place is of one slice, as nobody says how many there are.
func InstanceOf(profile string) (gpu.Instance, bool) {
	parts := wholeInstance.FindStringSubmatch(profile)
	if parts == nil {
		return gpu.Instance{}, false
	}
	gib, err := strconv.ParseInt(parts[2], 10, 64)
	return gpu.Instance{Profile: profile, Size: 1, MemoryMiB: gib * 1024}, err == nil
}

// servesInstances reports whether a device plugin serves MIG instances on a node, or parts of some.
func servesInstances(node *corev1.Node) bool {
	for name, amount := range node.Status.Capacity {
		if _, is := deviceclasses.ProfileOf(name); is && !amount.IsZero() {
			return true
		}
	}
	return false
}

// partition reads the GPUs of a node whose instances a device plugin serves, from the index first on: at least so many.
// Which instance is part of which GPU nobody says. So those of each profile are dealt out, and their places are
// numbers.
func (g *gpus) partition(node *corev1.Node, first, least int64, of gpu.GPU) {
	var instances []gpu.Instance
	computeSlices := 0
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		profile, is := deviceclasses.ProfileOf(name)
		amount := node.Status.Capacity[name]
		if !is || amount.IsZero() {
			continue
		}
		instance, is := InstanceOf(profile)
		n := amount.Value()
		if !is || strings.HasSuffix(profile, "shared") || n > mostInstances-int64(len(instances)) {
			g.others = append(g.others, string(name))
			continue
		}
		if memory, err := strconv.ParseInt(node.Labels[string(name)+".memory"], 10, 64); err == nil && memory > 0 {
			instance.MemoryMiB = memory
		} else {
			g.vague = true
		}
		instances = append(instances, slices.Repeat([]gpu.Instance{instance}, int(n))...)
		computeSlices += int(n) * int(profile[0]-'0')
	}
	n := min(max(int(min(least, mostGPUs)), (computeSlices+mostSlices-1)/mostSlices), len(instances))
	g.Partitioned = make([]gpu.Partitioned, n)
	for i := range g.Partitioned {
		p := &g.Partitioned[i]
		p.GPU = of
		p.Index = int(first) + i
		p.UUID = uuidOf(node, p.Index)
	}
	for i, instance := range instances {
		p := &g.Partitioned[i%n]
		instance.Start, instance.UUID = len(p.Instances), fmt.Sprintf("MIG-%s-%d", node.Name, i)
		p.Instances = append(p.Instances, instance)
	}
}
