// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin knows what pods hold of a node's GPUs that hold no claim: those
// that a device plugin started, before this driver came to the node or without it.
// It is pure.
//
// That they were given any, the kubelet says, and nobody else: whoever may write pods
// can write one that looks as if. Which GPUs they have, the scheduler that placed them
// wrote into their annotations (pkg/legacy), or the kubelet knows. Where neither
// says it, a pod that has some may be on any GPU, and counts on each.
package deviceplugin

import (
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

// Of returns what is taken of the node's GPUs. pods are those that are bound to it,
// with or without claims, in any order; Trim says what is read of them. A pod on a GPU
// that is missing in n.GPUs counts on every GPU.
func Of(pods []*corev1.Pod, n Node) held.Reserved {
	var found []held.Pod
	for _, pod := range pods {
		if p, holds := Read(pod, n); holds {
			found = append(found, p)
		}
	}
	return held.Of(found, n.GPUs)
}

// Listed returns what the kubelet alone says is taken of the node's GPUs, where pods are
// not read: whole GPUs, and all of every GPU where only a pod's annotations could tell.
func Listed(n Node) held.Reserved {
	var found []held.Pod
	for c, devices := range n.Kubelet.Containers {
		if len(devices.Resources) == 0 {
			continue
		}
		r := &reader{node: n, amounts: map[int]held.Taken{}}
		for _, id := range devices.IDs {
			index, offered, err := r.gpuOfDevice(id)
			if offered || err != nil {
				r.whole([]int{index}, err)
			}
		}
		if slices.ContainsFunc(devices.Resources, func(name corev1.ResourceName) bool {
			return !Native(name)
		}) {
			r.whole(nil, errors.New("it has a share by a device plugin, and only the pod says of which GPU, which the plugin "+
				"may read with the option device-plugin-pods (setting DEVICE_PLUGIN_PODS)"))
		}
		p := held.Pod{Namespace: c.Namespace, Name: c.Pod, Unknown: r.unknown}
		for _, index := range slices.Sorted(maps.Keys(r.amounts)) {
			p.Shares = append(p.Shares, held.Share{GPU: index, Taken: r.amounts[index]})
		}
		found = append(found, p)
	}
	return held.Of(found, n.GPUs)
}
