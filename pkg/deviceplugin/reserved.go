// SPDX-License-Identifier: Apache-2.0

// Package taken knows what pods hold of a node's GPUs that hold no claim: those
// that a device plugin started, before this driver came to the node or without it.
// It is pure.
//
// That they were given any, the kubelet says, and nobody else: whoever may write pods
// can write one that looks as if. Which GPUs they have, the scheduler that placed them
// wrote into their annotations (pkg/legacy), or the kubelet knows. Where neither
// says it, a pod that has some may be on any GPU, and counts on each.
package deviceplugin

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// wholeCores is all of a GPU's compute, in percent.
const wholeCores = 100

// Taken is what is held of a GPU.
type Taken struct {
	// Shares are the containers that have it.
	gpu.Amount
	// Whole says that it is all of the GPU. Units and Cores are 0 then.
	Whole bool
}

func (t Taken) plus(more Taken) Taken {
	return Taken{Amount: t.Plus(more.Amount), Whole: t.Whole || more.Whole}
}

// Share is what a pod holds of the GPU with the index.
type Share struct {
	GPU int
	Taken
}

// Unknown is what a pod holds of some GPU or GPUs, of which it is not known which.
type Unknown struct {
	Taken
	// Reason says why, for people.
	Reason string
}

// Pod is a pod that holds GPUs without a claim.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// Shares are what it is known to hold, one for each GPU, ordered by index.
	Shares []Share
	// Unknown is the rest.
	Unknown []Unknown
}

// FullName is the pod's name for people: namespace/name.
func (p Pod) FullName() string { return p.Namespace + "/" + p.Name }

// GPU is what is taken of one GPU by all pods that hold no claim.
type GPU struct {
	Taken
	// MemoryOnly says that some hold memory and no compute of it.
	MemoryOnly bool
	// Pods are their names, as in Pod.FullName, in order.
	Pods []string
	// Driver is another DRA driver that has the GPU, if one has: it gives it to pods whether
	// they are among Pods yet or not.
	Driver string
}

// Closes reports whether nothing of the GPU may be handed out in this mode of its
// node. Somebody holds all of it; or the mode hands out GPUs as a whole; or whoever
// holds a share is held to it in another way than the mode's claims: as among claims,
// those that were promised compute and those that were not do not share a GPU.
func (c GPU) Closes(m mode.Mode) bool {
	switch {
	case c.Taken == Taken{}:
		return false
	case c.Whole || !m.Shared():
		return true
	case m.CountsCores():
		return c.MemoryOnly
	default:
		return c.Cores > 0
	}
}

// Reserved is what pods that hold no claim hold of a node's GPUs.
type Reserved struct {
	// Pods are these pods, ordered by namespace and name.
	Pods []Pod
	// Outdated says that the kubelet did not answer, so that all is as it said last.
	Outdated bool
	gpus     map[string]GPU // by UUID
}

// GPU returns what is taken of the GPU with the UUID. A pod of which it is not
// known which GPU it has counts in full on every GPU.
func (t Reserved) GPU(uuid string) GPU { return t.gpus[uuid] }

// IsEmpty reports whether nothing is taken of any GPU, as far as that is known.
func (t Reserved) IsEmpty() bool { return len(t.Pods) == 0 && len(t.gpus) == 0 }

// Of returns what is taken of the node's GPUs. pods are those that are bound to it,
// with or without claims, in any order; Trim says what is read of them. A pod on a GPU
// that is missing in n.GPUs counts on every GPU.
func Of(pods []*corev1.Pod, n Node) Reserved {
	t := Reserved{gpus: map[string]GPU{}}
	for _, pod := range pods {
		if p, holds := Read(pod, n); holds {
			t.Pods = append(t.Pods, p)
		}
	}
	t.sum(n.GPUs)
	return t
}

// Listed returns what the kubelet alone says is taken of the node's GPUs, where pods are
// not read: whole GPUs, and all of every GPU where only a pod's annotations could tell.
func Listed(n Node) Reserved {
	t := Reserved{gpus: map[string]GPU{}}
	for c, devices := range n.Kubelet.Containers {
		if len(devices.Resources) == 0 {
			continue
		}
		r := &reader{node: n, amounts: map[int]Taken{}}
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
		p := Pod{Namespace: c.Namespace, Name: c.Pod, Unknown: r.unknown}
		for _, index := range slices.Sorted(maps.Keys(r.amounts)) {
			p.Shares = append(p.Shares, Share{GPU: index, Taken: r.amounts[index]})
		}
		t.Pods = append(t.Pods, p)
	}
	t.sum(n.GPUs)
	return t
}

// sum adds up what the pods hold of each GPU.
func (t *Reserved) sum(gpus []gpu.GPU) {
	slices.SortFunc(t.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, g := range gpus {
		var held GPU
		for _, p := range t.Pods {
			held.add(p, g.Index)
		}
		if len(held.Pods) > 0 {
			t.gpus[g.UUID] = held
		}
	}
}

// add adds what the pod holds, or may hold, of the GPU with the index.
func (c *GPU) add(p Pod, index int) {
	var amounts Taken
	for _, s := range p.Shares {
		if s.GPU == index {
			amounts = amounts.plus(s.Taken)
		}
	}
	for _, u := range p.Unknown {
		amounts = amounts.plus(u.Taken)
	}
	if amounts == (Taken{}) {
		return
	}
	c.Taken = c.plus(amounts)
	c.MemoryOnly = c.MemoryOnly || amounts.Units > 0 && amounts.Cores == 0
	c.Pods = append(c.Pods, p.FullName())
}

// Left returns what remains of a GPU of which there was so much; never less than
// nothing.
func (c GPU) Left(units, shares int64) gpu.Amount {
	if c.Whole {
		return gpu.Amount{}
	}
	return gpu.Amount{Units: max(0, units-c.Units), Cores: max(0, wholeCores-c.Cores), Shares: max(0, shares-c.Shares)}
}

// Ended reports whether all containers of the pod have ended for good.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
