// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

// Holds reports whether a pod may hold GPUs without a claim: it is bound to a node and has
// not ended, and a container has a limit that only a device plugin can have served.
// Whoever writes pods can write such a one; Read reports whether it holds any.
func Holds(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || claim.Ended(pod) {
		return false
	}
	return asksInAnnotations(pod) || asksNative(pod)
}

// all are the containers of the pod.
func all(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers)
}

func asksNative(pod *corev1.Pod) bool {
	return slices.ContainsFunc(all(pod), func(c corev1.Container) bool { return native(pod, c) > 0 })
}

// asksInAnnotations leaves out init containers, as ACK's schedulers do.
func asksInAnnotations(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, asksScheduler)
}

func asksScheduler(c corev1.Container) bool {
	return limit(c, ack.ResourceMemory)+limit(c, ack.ResourceCores)+limit(c, ack.ResourceGPUs) > 0
}

// most bounds amounts, so that sums do not overflow.
const most = 1 << 32

func limit(c corev1.Container, name corev1.ResourceName) int64 {
	quantity := c.Resources.Limits[name]
	if quantity.CmpInt64(most) > 0 {
		return most
	}
	return max(0, quantity.Value())
}

// native is how many GPUs NVIDIA's device plugin gave to a container. Where a
// DeviceClass stands for the resource, the pod's status says which claim served it.
func native(pod *corev1.Pod, c corev1.Container) int64 {
	var n int64
	for name := range c.Resources.Limits {
		if !Native(name) {
			continue
		}
		served := pod.Status.ExtendedResourceClaimStatus != nil &&
			slices.ContainsFunc(pod.Status.ExtendedResourceClaimStatus.RequestMappings,
				func(r corev1.ContainerExtendedResourceRequest) bool {
					return r.ContainerName == c.Name && r.ResourceName == string(name)
				})
		if !served {
			n += limit(c, name)
		}
	}
	return n
}

// Read returns what the pod holds; false where that is nothing, as for a pod to which
// no device plugin has given anything, whatever it says of itself.
func Read(pod *corev1.Pod, n Node) (held.Pod, bool) {
	if !Holds(pod) {
		return held.Pod{}, false
	}
	r := &reader{pod: pod, node: n, possible: n.possible(pod), amounts: map[int]held.Taken{}}
	var seen bool
	if r.observed, seen = n.Observed[pod.UID]; !seen {
		r.observed.Annotations = annotationsOf(pod)
	}
	r.readShares()
	r.readLinked()
	r.readNative()
	out := held.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Unknown: r.unknown}
	for _, index := range slices.Sorted(maps.Keys(r.amounts)) {
		out.Shares = append(out.Shares, held.Share{GPU: index, Taken: r.amounts[index]})
	}
	return out, len(out.Shares)+len(out.Unknown) > 0
}

// reader puts together what a pod holds.
type reader struct {
	pod  *corev1.Pod
	node Node
	// observed is what the pod was first seen with.
	observed Observation
	// possible reports whether it may have what the kubelet does not tell.
	possible bool
	amounts  map[int]held.Taken // by the GPU's index
	unknown  []held.Unknown
}

// part is an amount that a container has of the GPU with the index.
type part struct {
	container, gpu int
	amount         int64
}

// annotation returns the first of these annotations that the pod was first seen with.
func (r *reader) annotation(names ...string) (name, value string, err error) {
	if r.observed.Lost {
		return "", "", errors.New("what it was first seen with is not known any more: see the node's Event GPUStateDamaged")
	}
	for _, name := range names {
		value, ok := r.observed.Annotations[name]
		if ok && len(value) > mostAnnotation {
			return "", "", fmt.Errorf("its annotation %s has more than %d bytes", name, mostAnnotation)
		}
		if ok {
			return name, value, nil
		}
	}
	return "", "", nil
}

// limits are those of the containers, by their index.
func (r *reader) limits(name corev1.ResourceName) []int64 {
	out := make([]int64, 0, len(r.pod.Spec.Containers))
	for _, c := range r.pod.Spec.Containers {
		out = append(out, limit(c, name))
	}
	return out
}

// readShares reads shares of memory and compute. If the GPUs of one of them are not
// known, those of both are not.
func (r *reader) readShares() {
	memory, cores := r.limits(ack.ResourceMemory), r.limits(ack.ResourceCores)
	total := held.Taken{Amount: gpu.Amount{Units: sum(memory), Cores: sum(cores)}}
	for i := range memory {
		if memory[i]+cores[i] > 0 {
			total.Shares++
		}
	}
	if total == (held.Taken{}) || !r.given(ack.ResourceMemory, ack.ResourceCores) {
		return
	}
	memoryParts, err := r.memory(memory)
	var coreParts []part
	if err == nil {
		coreParts, err = r.cores(cores, memoryParts)
	}
	if err != nil {
		r.unknown = append(r.unknown, held.Unknown{Taken: total, Reason: err.Error()})
		return
	}
	for _, p := range memoryParts {
		r.add(p.gpu, held.Taken{Amount: gpu.Amount{Units: p.amount, Shares: 1}})
	}
	for _, p := range coreParts {
		counted := slices.ContainsFunc(memoryParts,
			func(m part) bool { return m.container == p.container && m.gpu == p.gpu })
		r.add(p.gpu, held.Taken{Amount: gpu.Amount{Cores: p.amount, Shares: shares(!counted)}})
	}
}

func shares(one bool) int64 {
	if one {
		return 1
	}
	return 0
}

func (r *reader) add(g int, t held.Taken) { r.amounts[g] = r.amounts[g].Plus(t) }

func (r *reader) memory(limits []int64) ([]part, error) {
	name, text, err := r.annotation(ack.AnnotationMemory, ack.AnnotationV1Index)
	switch {
	case err != nil:
		return nil, err
	case name == ack.AnnotationMemory:
		return r.decodeAmounts(name, text, limits)
	case name != "":
		return r.decodeIndex(text, limits)
	case sum(limits) == 0:
		return nil, nil
	}
	return nil, fmt.Errorf("it has neither of the annotations %s and %s", ack.AnnotationMemory, ack.AnnotationV1Index)
}

// cores reads shares of compute. Without an annotation of their own they are on the
// GPU of the memory, if that is one.
func (r *reader) cores(limits []int64, memory []part) ([]part, error) {
	name, text, err := r.annotation(ack.AnnotationCores)
	switch {
	case err != nil:
		return nil, err
	case name != "":
		return r.decodeAmounts(name, text, limits)
	case sum(limits) == 0:
		return nil, nil
	}
	other := func(p part) bool { return p.gpu != memory[0].gpu }
	if len(memory) == 0 || slices.ContainsFunc(memory, other) {
		return nil, fmt.Errorf("it has no annotation %s", ack.AnnotationCores)
	}
	return onGPU(memory[0].gpu, limits), nil
}

// onGPU puts all amounts on one GPU.
func onGPU(g int, limits []int64) []part {
	var out []part
	for i, amount := range limits {
		if amount > 0 {
			out = append(out, part{container: i, gpu: g, amount: amount})
		}
	}
	return out
}

// readLinked reads whole GPUs of nodes in mode topology.
func (r *reader) readLinked() {
	limits := r.limits(ack.ResourceGPUs)
	if !r.given(ack.ResourceGPUs) {
		return
	}
	var indices []int
	name, text, err := r.annotation(ack.AnnotationTopology, ack.AnnotationGroup)
	switch {
	case err != nil:
	case name == ack.AnnotationTopology:
		indices, err = r.decodeTopology(text, limits)
	case name != "":
		indices, err = r.decodeGroup(text, sum(limits))
	default:
		err = fmt.Errorf("it has neither of the annotations %s and %s", ack.AnnotationTopology, ack.AnnotationGroup)
	}
	r.whole(indices, err)
}

// whole notes whole GPUs, or that they are not known.
func (r *reader) whole(indices []int, err error) {
	if err != nil {
		r.unknown = append(r.unknown, held.Unknown{Taken: held.Taken{Amount: gpu.Amount{Shares: 1}, Whole: true},
			Reason: err.Error()})
		return
	}
	for _, index := range indices {
		r.add(index, held.Taken{Amount: gpu.Amount{Shares: 1}, Whole: true})
	}
}

func sum(amounts []int64) int64 {
	var total int64
	for _, amount := range amounts {
		total += amount
	}
	return total
}

// GPU finds a GPU by its index.
func (r *reader) gpu(index int) error {
	if slices.ContainsFunc(r.node.GPUs, func(g gpu.GPU) bool { return g.Index == index }) {
		return nil
	}
	return fmt.Errorf("the node has no GPU %d", index)
}

// readNative reads whole GPUs that NVIDIA's device plugin gave.
func (r *reader) readNative() {
	if asksNative(r.pod) {
		r.whole(r.nativeGPUs())
	}
}

// nativeGPUs uses what the kubelet lists. It does not list init containers that
// end before the others begin: the others get their devices, as far as they ask for
// any, and the rest stays with the pod.
func (r *reader) nativeGPUs() ([]int, error) {
	var indices []int
	var running, before int64
	for _, c := range all(r.pod) {
		asked := native(r.pod, c)
		if isInit(r.pod, c) {
			before = max(before, asked)
			continue
		}
		devices, listed := r.devices(c)
		switch {
		case listed && len(devices.IDs) == 0, !listed && (asked == 0 || !r.possible):
			continue
		case !listed && r.node.Kubelet.Err != nil:
			return nil, fmt.Errorf("its GPUs could not be asked of the kubelet: %w", r.node.Kubelet.Err)
		case !listed:
			return nil, fmt.Errorf("the kubelet does not list container %s", c.Name)
		case int64(len(devices.IDs)) != asked:
			return nil, fmt.Errorf("container %s asks for %d devices of NVIDIA's device plugin, and the kubelet lists %d",
				c.Name, asked, len(devices.IDs))
		}
		running += asked
		for _, id := range devices.IDs {
			index, offered, err := r.gpuOfDevice(id)
			if err != nil {
				return nil, fmt.Errorf("container %s: %w", c.Name, err)
			}
			if offered {
				indices = append(indices, index)
			}
		}
	}
	if before > running && r.possible {
		return nil, fmt.Errorf("an init container asks for %d devices of NVIDIA's device plugin, which the kubelet does "+
			"not list", before)
	}
	slices.SortFunc(indices, cmp.Compare[int])
	return slices.Compact(indices), nil
}

// isInit reports whether c is an init container of the pod that ends before the others
// begin.
func isInit(pod *corev1.Pod, c corev1.Container) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(init corev1.Container) bool {
		return init.Name == c.Name && (init.RestartPolicy == nil ||
			*init.RestartPolicy != corev1.ContainerRestartPolicyAlways)
	})
}
