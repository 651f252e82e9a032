// SPDX-License-Identifier: Apache-2.0

package fromack

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// gpus are those of a node, which are all alike, as far as it says.
type gpus struct {
	gpu.Machine
	// vague reports whether the memory of some MIG instances is known by the names of their profiles alone. others are
	// resources of instances that are none, or too many.
	vague  bool
	others []string
}

// mostGPUs is how many GPUs a node may say that it has.
const mostGPUs = 64

// resourceGPU is what NVIDIA's device plugin shows GPUs as, each as often as it has replicas.
const resourceGPU corev1.ResourceName = "nvidia.com/gpu"

// counts are the resources that say how many GPUs a node has.
var counts = []corev1.ResourceName{ack.ResourceCount, resourceGPU, ack.ResourceGPUs}

// has reports whether a node has any.
func has(node *corev1.Node) bool {
	return node.Labels[ack.NodeLabelCount] != "" || node.Labels[ack.NodeLabelModel] != "" || shown(node) != 0 ||
		servesInstances(node)
}

// shown is how many GPUs a device plugin of a node serves that are not cut, as far as it says.
func shown(node *corev1.Node) int64 {
	for _, name := range counts {
		amount := node.Status.Capacity[name]
		if amount.IsZero() {
			continue
		}
		n := amount.Value()
		if replicas, err := strconv.ParseInt(node.Labels[labelReplicas], 10, 64); name == resourceGPU && err == nil &&
			replicas > 1 {
			n = 1 + (n-1)/replicas
		}
		return n
	}
	return 0
}

// read are the GPUs of a node that has any. An error says what is not known of them.
func read(node *corev1.Node) (out gpus, err error) {
	product := node.Labels[labelProduct]
	switch {
	case node.Labels[labelStrategy] == "single" && (product == "" || strings.Contains(product, "-MIG-")):
		return out, fmt.Errorf("its nvidia.com/gpu are MIG instances, or may be (label %s=single), and of which profile is "+
			"not known before the driver runs there", labelStrategy)
	case node.Labels[ack.NodeLabelSchedule] == "mig" && !servesInstances(node):
		return out, errors.New("how its GPUs are cut into MIG instances is not known before the driver runs there")
	}
	model := cmp.Or(node.Labels[ack.NodeLabelModel], advice.Model(product), "unknown")
	as := gpu.GPU{Model: model, ProductName: model}
	n, err := strconv.ParseInt(node.Labels[ack.NodeLabelCount], 10, 64)
	if whole := shown(node); servesInstances(node) {
		out.partition(node, whole, n-whole, as)
		n = whole // the label counts those that are cut, too
	} else if err != nil {
		if n, err = strconv.ParseInt(node.Labels[labelGPUCount], 10, 64); err != nil {
			n = whole
		}
	}
	switch {
	case n == 0 && len(out.Partitioned) > 0:
		return out, nil
	case n < 1 || n > mostGPUs:
		return out, fmt.Errorf("how many GPUs it has is not known: label %s is %q, and it shows no %s", ack.NodeLabelCount,
			node.Labels[ack.NodeLabelCount], ack.ResourceCount)
	}
	text := cmp.Or(node.Labels[ack.NodeLabelMemory], node.Labels[labelGPUMemory])
	as.MemoryMiB, err = strconv.ParseInt(strings.TrimSuffix(text, "MiB"), 10, 64)
	if all := node.Status.Capacity[ack.ResourceMemory]; err != nil && !all.IsZero() {
		as.MemoryMiB, err = all.Value()/n*1024, nil
	}
	if err != nil || as.MemoryMiB < 1 {
		return out, fmt.Errorf("how much memory its GPUs have is not known: label %s is %q, and it shows no %s",
			ack.NodeLabelMemory, text, ack.ResourceMemory)
	}
	for i := range int(n) {
		as.Index, as.Minor, as.UUID = i, i, uuidOf(node, i)
		out.GPUs = append(out.GPUs, as)
	}
	return out, nil
}

// uuidOf stands for the UUID of a GPU, which no node says.
func uuidOf(node *corev1.Node, index int) string { return fmt.Sprintf("GPU-%s-%d", node.Name, index) }

// without is a node of which no device plugin gives GPUs any more.
func without(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	for _, list := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
		maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool {
			return deviceplugin.OfPlugin(name) || slices.Contains(counts, name) || slices.Contains(legacy.Names(), name)
		})
	}
	return node
}
