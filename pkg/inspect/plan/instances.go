// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
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

// profileOf is the MIG profile that a device plugin serves as the resource: it writes "+" as ".".
func profileOf(name corev1.ResourceName) (string, bool) {
	profile, is := strings.CutPrefix(string(name), v1alpha1.MIGResourcePrefix)
	return strings.Replace(profile, "gb.", "gb+", 1), is
}

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

// cutUnknown says why nobody knows how the GPUs of a node are cut before the driver runs there, empty if it is known.
func cutUnknown(node *corev1.Node) string {
	product := node.Labels[labelProduct]
	switch {
	case node.Labels[labelStrategy] == "single" && (product == "" || strings.Contains(product, "-MIG-")):
		return fmt.Sprintf("its nvidia.com/gpu are MIG instances, or may be (label %s=single), and of which profile is not "+
			"known before the driver runs there", labelStrategy)
	case node.Labels[ack.NodeLabelSchedule] == "mig" && !servesInstances(node):
		return "how its GPUs are cut into MIG instances is not known before the driver runs there"
	}
	return ""
}

// servesInstances says whether a device plugin serves MIG instances on a node, or parts of some.
func servesInstances(node *corev1.Node) bool {
	for name, amount := range node.Status.Capacity {
		if _, is := profileOf(name); is && !amount.IsZero() {
			return true
		}
	}
	return false
}

// served are the MIG instances that a device plugin serves on a node. vague says that the memory of some is known by
// the names of their profiles alone, others are resources that are none, or that the node shows too many of.
func served(node *corev1.Node) (instances []gpu.Instance, vague bool, others []string) {
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		profile, is := profileOf(name)
		amount := node.Status.Capacity[name]
		if !is || amount.IsZero() {
			continue
		}
		instance, is := InstanceOf(profile)
		n := amount.Value()
		if !is || strings.HasSuffix(profile, "shared") || n > mostInstances-int64(len(instances)) {
			others = append(others, string(name))
			continue
		}
		if memory, err := strconv.ParseInt(node.Labels[string(name)+".memory"], 10, 64); err == nil && memory > 0 {
			instance.MemoryMiB = memory
		} else {
			vague = true
		}
		instances = append(instances, slices.Repeat([]gpu.Instance{instance}, int(n))...)
	}
	return instances, vague, others
}

// partitioned are the GPUs of a node whose instances a device plugin serves, from the index first on: at least so
// many. Which instance is part of which GPU nobody says. So those of each profile are dealt out, and their places are
// numbers.
func partitioned(node *corev1.Node, first, least int64, of gpu.GPU) []gpu.Partitioned {
	instances, _, _ := served(node)
	computeSlices := 0
	for _, i := range instances {
		computeSlices += int(i.Profile[0] - '0')
	}
	n := min(max(int(min(least, mostGPUs)), (computeSlices+mostSlices-1)/mostSlices), len(instances))
	out := make([]gpu.Partitioned, n)
	for i := range out {
		out[i].GPU = of
		out[i].Index = int(first) + i
		out[i].UUID = uuidOf(node, out[i].Index)
	}
	for i, instance := range instances {
		p := &out[i%n]
		instance.Start, instance.UUID = len(p.Instances), fmt.Sprintf("MIG-%s-%d", node.Name, i)
		p.Instances = append(p.Instances, instance)
	}
	return out
}

// noteCut says what is not known of the MIG instances of nodes.
func (in *Input) noteCut(nodes []*corev1.Node) {
	var names, vaguely []string
	for _, node := range nodes {
		names = append(names, node.Name)
		_, vague, others := served(node)
		if vague {
			vaguely = append(vaguely, node.Name)
		}
		if len(others) > 0 {
			in.Notes = append(in.Notes, fmt.Sprintf("Of node %s is left out, as the driver offers whole MIG instances: %s.",
				node.Name, text.List(others, mostNamed)))
		}
	}
	if len(names) > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("Which GPU each MIG instance of %s is part of is not known: numbers of GPUs "+
			"and slices are made up. Multiprocessors and engines are not known either.", text.List(names, mostNamed)))
	}
	if len(vaguely) > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("The memory of MIG instances of %s is taken from the names of their profiles"+
			", and may be a little less: the labels %s….memory are missing.", text.List(vaguely, mostNamed),
			v1alpha1.MIGResourcePrefix))
	}
}
