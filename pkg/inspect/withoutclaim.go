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

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
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
		if pods := b.nodes[name].pendingPods; len(pods) > 0 {
			b.note("On node %s pods hold GPUs without a claim, and which GPUs is not known here; it is shown as PENDING: %s.",
				name, someOf(pods))
		}
	}
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

func (n *node) chargePod(pod *corev1.Pod, holds deviceplugin.Pod) {
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
	var reason string
	var cores int64
	for _, u := range holds.Unknown {
		h.PendingGiB += u.Units
		if u.Whole {
			h.PendingGiB += wholeGPUs(pod) * n.largest()
		}
		cores += u.Cores
		reason = u.Reason
	}
	if reason != "" {
		n.pendingPods = append(n.pendingPods, fmt.Sprintf("%s (%s)", holds.FullName(), reason))
	}
	n.PendingGiB += h.PendingGiB
	n.MemoryGiB.take(h.PendingGiB)
	if slices.ContainsFunc(n.indices(),
		func(index int) bool { return offeredIn(n.gpus[index].offered).CountsCores() }) {
		n.CoresPercent.take(cores)
	}
}

// wholeGPUs is how many whole GPUs a pod asked device plugins for.
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

// chargeAsPublished goes by what is left of the GPUs, where the pods may not be read.
func (b *builder) chargeAsPublished() {
	for _, n := range b.nodes {
		for _, c := range n.gpus {
			if c.closed {
				c.withoutClaimGiB = c.MemoryGiB.Total
			}
			c.take(c.withoutClaimGiB, c.withoutClaimCores)
		}
	}
}

// take charges the GPU. Compute is counted in mode core_mem only.
func (c *unfinishedGPU) take(gib, cores int64) {
	c.MemoryGiB.take(gib)
	if offeredIn(c.offered).CountsCores() {
		c.CoresPercent.take(cores)
	}
}
