// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"
)

// Finding is something that is not as it was granted.
type Finding struct {
	Kind Kind
	// Pod is whose it is; empty of kind NoPod. Of kind GonePod its name may be.
	Pod Pod
	// Container is the name of the container; empty where it is not known.
	Container string
	// Index and UUID say on which GPU.
	Index int
	UUID  string
	// Program tells findings of kind NoPod apart.
	Program string
	// Message says it in a sentence, with the amounts of that moment.
	Message string
	// Unread are claims of the pod, of kinds NoGrant and OverShare, of which nothing is
	// recorded here: they may grant the GPU, or more of it, by another driver.
	Unread []string
	// AsksPlugin says, of kind NoGrant, that the pod has limits that device plugins serve: the kubelet
	// knows whether one gave it anything.
	AsksPlugin bool
	// MayEvict says that the pod can be evicted for it: nobody exempts it, and something
	// other than a file of the node has made it.
	MayEvict bool
}

// Pod names a pod.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

// key tells what is one finding from one reading to the next.
type key struct {
	kind               Kind
	pod                types.UID
	container, program string
	uuid               string
}

func (f Finding) key() key { return key{f.Kind, f.Pod.UID, f.Container, f.Program, f.UUID} }

func compareFindings(a, b Finding) int {
	return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name),
		cmp.Compare(a.Pod.UID, b.Pod.UID), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Index, b.Index),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Program, b.Program))
}
