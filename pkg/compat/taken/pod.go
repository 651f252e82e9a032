package taken

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// NativeResources lists what NVIDIA's device plugin serves cards as. The second is the
// name that it can be told to give to cards that it shares (source: k8s-device-plugin,
// renameByDefault).
func NativeResources() []corev1.ResourceName {
	return []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpu.shared"}
}

// Container names a container of a pod.
type Container struct{ Namespace, Pod, Name string }

// Kubelet is what the node's kubelet says of the devices that it gave to containers.
type Kubelet struct {
	// Devices are the IDs of the devices of NativeResources.
	Devices map[Container][]string
	// Err says why that is not known, nil if it is.
	Err error
}

// Holds says whether a pod holds cards without a claim: it is bound to a node and has
// not ended, and a container has a limit that only a device plugin can have served.
func Holds(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || compat.Ended(pod) {
		return false
	}
	return asksInAnnotations(pod) || AsksKubelet(pod)
}

// AsksKubelet says whether only the kubelet can know the cards of the pod, or of some
// of its containers.
func AsksKubelet(pod *corev1.Pod) bool {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if native(pod, c) > 0 {
			return true
		}
	}
	return false
}

// asksInAnnotations leaves out init containers, as ACK's schedulers do.
func asksInAnnotations(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return limit(c, legacy.ResourceMemory)+limit(c, legacy.ResourceCores)+limit(c, legacy.ResourceCards) > 0
	})
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

// native is how many cards NVIDIA's device plugin gave to a container. Where a
// DeviceClass stands for the resource, the pod's status says which claim served it.
func native(pod *corev1.Pod, c corev1.Container) int64 {
	var n int64
	for _, name := range NativeResources() {
		served := pod.Status.ExtendedResourceClaimStatus != nil &&
			slices.ContainsFunc(pod.Status.ExtendedResourceClaimStatus.RequestMappings, func(r corev1.ContainerExtendedResourceRequest) bool {
				return r.ContainerName == c.Name && r.ResourceName == string(name)
			})
		if !served {
			n += limit(c, name)
		}
	}
	return n
}

// Read returns what the pod holds; false for a pod for which Holds is.
func Read(pod *corev1.Pod, cards []gpu.GPU, kubelet Kubelet) (Pod, bool) {
	if !Holds(pod) {
		return Pod{}, false
	}
	r := &reader{pod: pod, cards: cards, kubelet: kubelet, held: map[int]Amount{}}
	r.readShares()
	r.readLinked()
	r.readNative()
	out := Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Unknown: r.unknown}
	for _, index := range slices.Sorted(maps.Keys(r.held)) {
		out.Shares = append(out.Shares, Share{Card: index, Amount: r.held[index]})
	}
	return out, true
}

// reader puts together what a pod holds.
type reader struct {
	pod     *corev1.Pod
	cards   []gpu.GPU
	kubelet Kubelet

	held    map[int]Amount // by the card's index
	unknown []Unknown
}

// part is an amount that a container has of the card with the index.
type part struct {
	container, card int
	amount          int64
}

func (r *reader) annotation(name string) (string, bool) {
	value, ok := r.pod.Annotations[name]
	return value, ok
}

// limits are those of the containers, by their index.
func (r *reader) limits(name corev1.ResourceName) []int64 {
	out := make([]int64, 0, len(r.pod.Spec.Containers))
	for _, c := range r.pod.Spec.Containers {
		out = append(out, limit(c, name))
	}
	return out
}

// readShares reads shares of memory and compute. If the cards of one of them are not
// known, those of both are not.
func (r *reader) readShares() {
	memory, cores := r.limits(legacy.ResourceMemory), r.limits(legacy.ResourceCores)
	total := Amount{Units: sum(memory), Cores: sum(cores)}
	for i := range memory {
		if memory[i]+cores[i] > 0 {
			total.Shares++
		}
	}
	if total == (Amount{}) {
		return
	}
	memoryParts, err := r.memory(memory)
	var coreParts []part
	if err == nil {
		coreParts, err = r.cores(cores, memoryParts)
	}
	if err != nil {
		r.unknown = append(r.unknown, Unknown{Amount: total, Reason: err.Error()})
		return
	}
	for _, p := range memoryParts {
		r.hold(p.card, Amount{Units: p.amount, Shares: 1})
	}
	for _, p := range coreParts {
		counted := slices.ContainsFunc(memoryParts, func(m part) bool { return m.container == p.container && m.card == p.card })
		r.hold(p.card, Amount{Cores: p.amount, Shares: shares(!counted)})
	}
}

func shares(one bool) int64 {
	if one {
		return 1
	}
	return 0
}

func (r *reader) hold(card int, a Amount) { r.held[card] = r.held[card].plus(a) }

func (r *reader) memory(limits []int64) ([]part, error) {
	if text, ok := r.annotation(legacy.AnnotationMemory); ok {
		return r.decodeAmounts(legacy.AnnotationMemory, text, limits)
	}
	if text, ok := r.annotation(legacy.AnnotationV1Index); ok {
		return r.decodeIndex(text, limits)
	}
	if sum(limits) == 0 {
		return nil, nil
	}
	return nil, fmt.Errorf("it has neither of the annotations %s and %s", legacy.AnnotationMemory, legacy.AnnotationV1Index)
}

// cores reads shares of compute. Without an annotation of their own they are on the
// card of the memory, if that is one.
func (r *reader) cores(limits []int64, memory []part) ([]part, error) {
	if text, ok := r.annotation(legacy.AnnotationCores); ok {
		return r.decodeAmounts(legacy.AnnotationCores, text, limits)
	}
	if sum(limits) == 0 {
		return nil, nil
	}
	other := func(p part) bool { return p.card != memory[0].card }
	if len(memory) == 0 || slices.ContainsFunc(memory, other) {
		return nil, fmt.Errorf("it has no annotation %s", legacy.AnnotationCores)
	}
	return onCard(memory[0].card, limits), nil
}

// onCard puts all amounts on one card.
func onCard(card int, limits []int64) []part {
	var out []part
	for i, amount := range limits {
		if amount > 0 {
			out = append(out, part{container: i, card: card, amount: amount})
		}
	}
	return out
}

// readLinked reads whole cards of nodes in mode topology.
func (r *reader) readLinked() {
	limits := r.limits(legacy.ResourceCards)
	if sum(limits) == 0 {
		return
	}
	var indices []int
	var err error
	if text, ok := r.annotation(legacy.AnnotationTopology); ok {
		indices, err = r.decodeTopology(text, limits)
	} else if text, ok := r.annotation(legacy.AnnotationGroup); ok {
		indices, err = r.decodeGroup(text, sum(limits))
	} else {
		err = fmt.Errorf("it has neither of the annotations %s and %s", legacy.AnnotationTopology, legacy.AnnotationGroup)
	}
	r.whole(indices, err)
}

// whole notes whole cards, or that they are not known.
func (r *reader) whole(indices []int, err error) {
	if err != nil {
		r.unknown = append(r.unknown, Unknown{Amount: Amount{Shares: 1, Whole: true}, Reason: err.Error()})
		return
	}
	for _, index := range indices {
		r.hold(index, Amount{Shares: 1, Whole: true})
	}
}

func sum(amounts []int64) int64 {
	var total int64
	for _, amount := range amounts {
		total += amount
	}
	return total
}

// card finds a card by its index.
func (r *reader) card(index int) error {
	if slices.ContainsFunc(r.cards, func(g gpu.GPU) bool { return g.Index == index }) {
		return nil
	}
	return fmt.Errorf("the node has no card %d", index)
}

// readNative reads whole cards that NVIDIA's device plugin gave.
func (r *reader) readNative() {
	if !AsksKubelet(r.pod) {
		return
	}
	if r.kubelet.Err != nil {
		r.whole(nil, fmt.Errorf("its cards could not be asked of the kubelet: %w", r.kubelet.Err))
		return
	}
	r.whole(r.nativeCards())
}

// nativeCards goes by what the kubelet lists. It does not list init containers that
// end before the others begin: the others get their devices, as far as they ask for
// any, and the rest stays with the pod.
func (r *reader) nativeCards() ([]int, error) {
	var indices []int
	var running, before int64
	for _, c := range slices.Concat(r.pod.Spec.Containers, r.pod.Spec.InitContainers) {
		asked := native(r.pod, c)
		if asked > 0 && isInit(r.pod, c) {
			before = max(before, asked)
			continue
		}
		running += asked
		ids := r.kubelet.Devices[Container{Namespace: r.pod.Namespace, Pod: r.pod.Name, Name: c.Name}]
		if int64(len(ids)) != asked {
			return nil, fmt.Errorf("container %s asks for %d devices of NVIDIA's device plugin, and the kubelet lists %d", c.Name, asked, len(ids))
		}
		for _, id := range ids {
			index, offered, err := r.cardOfDevice(id)
			if err != nil {
				return nil, fmt.Errorf("container %s: %w", c.Name, err)
			}
			if offered {
				indices = append(indices, index)
			}
		}
	}
	if before > running {
		return nil, fmt.Errorf("an init container asks for %d devices of NVIDIA's device plugin, which the kubelet does not list", before)
	}
	slices.SortFunc(indices, cmp.Compare[int])
	return slices.Compact(indices), nil
}

// isInit says whether c is an init container of the pod that ends before the others
// begin.
func isInit(pod *corev1.Pod, c corev1.Container) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(init corev1.Container) bool {
		return init.Name == c.Name && (init.RestartPolicy == nil || *init.RestartPolicy != corev1.ContainerRestartPolicyAlways)
	})
}
