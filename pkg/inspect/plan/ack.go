// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// fromCluster is where pods come from that are there.
const fromCluster = "the cluster"

// mostGPUs is how many GPUs a node may say that it has.
const mostGPUs = 64

// FromACK makes of a cluster what it is when all nodes have moved from ACK's device plugins to
// the driver, and plans its pods without claims that ask for GPUs: each stays on its node if
// it has room there. What is known of the GPUs is what labels and amounts of nodes say.
func (in *Input) FromACK() error {
	var models []string
	var unlinked []string
	var cut []*corev1.Node
	nodes := slices.Clone(in.Nodes)
	in.moved = map[string]bool{}
	for i, node := range nodes {
		if in.moved[node.Name] = in.offers(node.Name); in.moved[node.Name] || !hasGPUs(node) {
			continue
		}
		if why := cutUnknown(node); why != "" {
			in.Notes = append(in.Notes, fmt.Sprintf("Node %s is left out: %s.", node.Name, why))
			continue
		}
		machine, err := machineOf(node)
		if err != nil {
			in.Notes = append(in.Notes, fmt.Sprintf("Node %s is left out: %v.", node.Name, err))
			continue
		}
		published, err := Published(node, machine, true)
		if err != nil {
			in.Notes = append(in.Notes, fmt.Sprintf("Node %s is left out, as the driver would not serve it: %v.", node.Name,
				err))
			continue
		}
		if node.Labels[ack.NodeLabelSchedule] == "topology" {
			unlinked = append(unlinked, node.Name)
		}
		if len(machine.Partitioned) > 0 {
			cut = append(cut, node)
		}
		in.Slices = slices.DeleteFunc(slices.Clone(in.Slices), func(s *resourceapi.ResourceSlice) bool {
			return s.Spec.Driver == v1alpha1.DriverName && s.Spec.Pool.Name == v1alpha1.PoolName(node.Name)
		})
		in.Slices, nodes[i] = append(in.Slices, published...), withoutPlugin(node)
		for _, g := range machine.GPUs {
			models = append(models, g.Model)
		}
	}
	in.Nodes = nodes
	in.noteCut(cut)
	if len(unlinked) > 0 {
		in.Notes = append(in.Notes, fmt.Sprintf("How the GPUs of %s are linked is not known: single GPUs are planned.",
			text.List(unlinked, mostNamed)))
	}
	classes, err := deviceclasses.With(models)
	if err != nil {
		return err
	}
	for _, class := range classes {
		if !slices.ContainsFunc(in.Snapshot.Classes, func(c *resourceapi.DeviceClass) bool { return c.Name == class.Name }) {
			in.Snapshot.Classes = append(slices.Clone(in.Snapshot.Classes), class)
		}
	}
	return nil
}

// PlanPods plans those of the pods of the cluster that ask for GPUs and have no claim, the
// oldest first. The others count in their gangs alone, those among them that are on nodes which had moved before: what
// they hold is not offered there, and they keep it.
func (in *Input) PlanPods(pods []*corev1.Pod) {
	plans := func(pod *corev1.Pod) bool { return asksPlugin(pod) && !in.moved[pod.Spec.NodeName] }
	var planned []*corev1.Pod
	for _, pod := range pods {
		if plans(pod) {
			planned = append(planned, pod)
		}
	}
	slices.SortStableFunc(planned, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	workloads := make([]Workload, 0, len(planned)+len(in.Workloads))
	for _, pod := range planned {
		w := Workload{Source: Source{File: fromCluster}, Kind: "pod", Namespace: pod.Namespace, Name: pod.Name, Pods: 1,
			On: pod.Spec.NodeName, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: *pod.Spec.DeepCopy()}}
		w.Template.Spec.NodeName = ""
		workloads = append(workloads, w)
	}
	in.Workloads = append(workloads, in.Workloads...)
	in.Bound = slices.DeleteFunc(slices.Clone(in.Bound), plans)
	for _, pod := range pods {
		// Those on nodes are among Bound.
		if pod.Spec.NodeName == "" && !plans(pod) {
			in.Beside = append(in.Beside, pod)
		}
	}
}

// asksPlugin says whether a pod asks for GPUs that a device plugin gives, and has no claim.
func asksPlugin(pod *corev1.Pod) bool {
	if pod.Status.ExtendedResourceClaimStatus != nil {
		return false
	}
	if legacy.Asks(pod) {
		return true
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), func(c corev1.Container) bool {
		for name, amount := range c.Resources.Limits {
			if deviceplugin.Native(name) && !amount.IsZero() {
				return true
			}
		}
		return false
	})
}

// offers says whether the driver offers GPUs on a node already.
func (in *Input) offers(node string) bool {
	return slices.ContainsFunc(in.Slices, func(s *resourceapi.ResourceSlice) bool {
		return s.Spec.Driver == v1alpha1.DriverName && s.Spec.Pool.Name == v1alpha1.PoolName(node) && len(s.Spec.Devices) > 0
	})
}

// resourceGPU is what NVIDIA's device plugin shows GPUs as, each as often as it has replicas.
const resourceGPU corev1.ResourceName = "nvidia.com/gpu"

// counts are the resources that say how many GPUs a node has.
var counts = []corev1.ResourceName{ack.ResourceCount, resourceGPU, ack.ResourceGPUs}

func hasGPUs(node *corev1.Node) bool {
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

// machineOf are the GPUs of a node of ACK, which are all alike, as far as the node says.
func machineOf(node *corev1.Node) (*gpu.Machine, error) {
	model := cmp.Or(node.Labels[ack.NodeLabelModel], advice.Model(node.Labels[labelProduct]), "unknown")
	as, m := gpu.GPU{Model: model, ProductName: model}, &gpu.Machine{}
	n, err := strconv.ParseInt(node.Labels[ack.NodeLabelCount], 10, 64)
	if whole := shown(node); servesInstances(node) {
		m.Partitioned = partitioned(node, whole, n-whole, as)
		n = whole // the label counts those that are cut, too
	} else if err != nil {
		if n, err = strconv.ParseInt(node.Labels[labelGPUCount], 10, 64); err != nil {
			n = whole
		}
	}
	switch {
	case n == 0 && len(m.Partitioned) > 0:
		return m, nil
	case n < 1 || n > mostGPUs:
		return nil, fmt.Errorf("how many GPUs it has is not known: label %s is %q, and it shows no %s", ack.NodeLabelCount,
			node.Labels[ack.NodeLabelCount], ack.ResourceCount)
	}
	text := cmp.Or(node.Labels[ack.NodeLabelMemory], node.Labels[labelGPUMemory])
	as.MemoryMiB, err = strconv.ParseInt(strings.TrimSuffix(text, "MiB"), 10, 64)
	if all := node.Status.Capacity[ack.ResourceMemory]; err != nil && !all.IsZero() {
		as.MemoryMiB, err = all.Value()/n*1024, nil
	}
	if err != nil || as.MemoryMiB < 1 {
		return nil, fmt.Errorf("how much memory its GPUs have is not known: label %s is %q, and it shows no %s",
			ack.NodeLabelMemory, text, ack.ResourceMemory)
	}
	for i := range int(n) {
		as.Index, as.Minor, as.UUID = i, i, uuidOf(node, i)
		m.GPUs = append(m.GPUs, as)
	}
	return m, nil
}

// uuidOf stands for the UUID of a GPU, which no node says.
func uuidOf(node *corev1.Node, index int) string { return fmt.Sprintf("GPU-%s-%d", node.Name, index) }

// withoutPlugin is a node of which no device plugin gives GPUs any more.
func withoutPlugin(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	for _, list := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
		maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool {
			return deviceplugin.OfPlugin(name) || slices.Contains(counts, name) || slices.Contains(legacy.Names(), name)
		})
	}
	return node
}
