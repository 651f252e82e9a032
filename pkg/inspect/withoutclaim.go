// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

// WithoutClaimKey says, in a form to compare, what devices show to be taken of their GPUs
// by pods that hold no claim; it is empty where that is nothing. Only where it is not
// does Input need Pods, and others only when it changes.
func WithoutClaimKey(published []*resourceapi.ResourceSlice) string {
	var all []string
	for _, slice := range published {
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			if units, cores, closed := devices.Reserved(device); units > 0 || cores > 0 || closed {
				all = append(all, fmt.Sprintf("%s/%s %d %d %t", slice.Spec.Pool.Name, device.Name, units, cores, closed))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// onlyKubelet is why the GPUs of a pod of NVIDIA's device plugin are not known here.
var onlyKubelet = deviceplugin.Kubelet{Err: errors.New("only the node's kubelet knows them")}

// readPods charges the GPUs with what pods hold that hold no claim.
func (b *builder) readPods() {
	if b.in.PodsUnknown {
		b.chargeAsPublished()
		return
	}
	pods := slices.Clone(b.in.Pods)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range pods {
		n := b.nodes[pod.Spec.NodeName]
		if n == nil {
			continue
		}
		if uses, holds := deviceplugin.Read(pod, deviceplugin.Node{GPUs: n.machine(), Kubelet: onlyKubelet}); holds {
			n.chargePod(pod, uses)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.nodes)) {
		counted, uncounted := b.nodes[name].chargePending()
		if len(counted) > 0 {
			b.note("On node %s pods hold GPUs without a claim, and which GPUs is not known here; it is shown as PENDING, where "+
				"pods of a GPU that is shared by time count together as that GPU: %s.", name, someOf(counted))
		}
		if len(uncounted) > 0 {
			b.note("On node %s pods hold GPUs or MIG instances without a claim, and how much is not known here; it is not "+
				"counted: %s.", name, someOf(uncounted))
		}
	}
}

// pendingPod is a pod that holds what is not known.
type pendingPod struct {
	holder *Holder
	// wholeGiB is what the whole GPUs would have that it asks for.
	wholeGiB int64
	// name is the pod's, and why it is not known.
	name string
}

// chargePending charges the node with what pods hold of GPUs that are not known, and names those of which it is known
// how much, and the others. The driver closes each GPU that may be one's as a whole, and replicas of a GPU that is
// shared by time are that GPU: together they hold no more than the closed ones have free.
func (n *node) chargePending() (counted, uncounted []string) {
	var free, whole int64
	for _, c := range n.gpus {
		if c.closed {
			free += c.notAllocated()
		}
	}
	for _, p := range n.pendingPods {
		n.PendingGiB += p.holder.PendingGiB
		whole += p.wholeGiB
		p.holder.PendingGiB += min(p.wholeGiB, free)
		if p.holder.PendingGiB > 0 {
			counted = append(counted, p.name)
		} else {
			uncounted = append(uncounted, p.name)
		}
	}
	n.PendingGiB += min(whole, free)
	n.MemoryGiB.take(n.PendingGiB)
	return counted, uncounted
}

// mostNamed is how many pods a note names.
const mostNamed = 3

func someOf(pods []string) string {
	text := strings.Join(pods[:min(len(pods), mostNamed)], "; ")
	if more := len(pods) - mostNamed; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

func (n *node) chargePod(pod *corev1.Pod, holds held.Pod) {
	h := &Holder{Namespace: holds.Namespace, Pods: []string{holds.Name}, Claims: []string{}, Origin: OriginDevicePlugin}
	n.holders["without a claim/"+holds.FullName()] = h
	for _, s := range holds.Shares {
		c := n.gpus[s.GPU]
		share := Share{GPU: s.GPU, MemoryGiB: s.Units, CoresPercent: s.Cores}
		if s.Whole {
			share.MemoryGiB = c.MemoryGiB.Total
		}
		c.take(share.MemoryGiB, share.CoresPercent)
		h.hold(share)
	}
	var cores int64
	p := pendingPod{holder: h}
	for _, u := range holds.Unknown {
		h.PendingGiB += u.Units
		if u.Whole {
			p.wholeGiB = wholeGPUs(pod) * n.largest()
		}
		cores += u.Cores
		p.name = fmt.Sprintf("%s (%s)", holds.FullName(), u.Reason)
	}
	if p.name != "" {
		n.pendingPods = append(n.pendingPods, p)
	}
	if slices.ContainsFunc(n.indices(),
		func(index int) bool { return offeredIn(n.gpus[index].offered).CountsCores() }) {
		n.CoresPercent.take(cores)
	}
}

// wholeGPUs is how many whole GPUs a pod asked device plugins for. What a MIG instance has is not known.
func wholeGPUs(pod *corev1.Pod) int64 {
	var count int64
	for _, c := range pod.Spec.Containers {
		for _, name := range append(deviceplugin.NativeResources(), ack.ResourceGPUs) {
			amount := c.Resources.Limits[name]
			count += amount.Value()
		}
	}
	return count
}

// machine is what package deviceplugin needs to know of the node's GPUs.
func (n *node) machine() []gpu.GPU {
	gpus := make([]gpu.GPU, 0, len(n.gpus))
	for _, index := range n.indices() {
		gpus = append(gpus, gpu.GPU{Index: index, UUID: n.gpus[index].UUID})
	}
	return gpus
}

// largest is the memory of the largest GPU.
func (n *node) largest() int64 {
	var units int64
	for _, c := range n.gpus {
		units = max(units, c.MemoryGiB.Total)
	}
	return units
}

// chargeAsPublished uses what is left of the GPUs, where the pods may not be read.
func (b *builder) chargeAsPublished() {
	for _, n := range b.nodes {
		for _, c := range n.gpus {
			if c.closed {
				c.withoutClaimGiB = c.notAllocated()
			}
			c.take(c.withoutClaimGiB, c.withoutClaimCores)
		}
	}
}

// notAllocated is what is left of the GPU beside what it has been charged with.
func (c *unfinishedGPU) notAllocated() int64 {
	return max(0, c.MemoryGiB.Total-ptr.Deref(c.MemoryGiB.Allocated, 0))
}

// take charges the GPU. Compute is counted in mode core_mem only.
func (c *unfinishedGPU) take(gib, cores int64) {
	c.MemoryGiB.take(gib)
	if offeredIn(c.offered).CountsCores() {
		c.CoresPercent.take(cores)
	}
}
