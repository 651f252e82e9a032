// SPDX-License-Identifier: Apache-2.0

// Package pods has one picture of the pods on the node: those that the API server has, and those that it no longer has
// although they run, as after a deletion by force. A Watch keeps the picture.
package pods

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// startsWithin is how long a deleted pod that uses claims stays in the picture at least: the kubelet may have been
// starting one of its containers.
const startsWithin = 5 * time.Second

// Processes reports whether a pod has processes on the node; *podcgroup.Tree implements it.
type Processes interface {
	Running(pod types.UID) (bool, error)
}

// Follower hears of the pods from its Picture. Its methods may call the Picture.
type Follower interface {
	// Saw is called with each version of a pod. before is the previous version, nil for a new pod. For a static pod
	// whose mirror was made again it is the previous mirror.
	Saw(before, pod *corev1.Pod)
	// Deleted is called with a pod that the API server no longer has, and with whether it has processes.
	Deleted(pod *corev1.Pod, runs bool)
	// Ended is called with a deleted pod that has no processes any more.
	Ended(pod *corev1.Pod)
}

// nobody follows.
type nobody struct{}

func (nobody) Saw(_, _ *corev1.Pod)      {}
func (nobody) Deleted(*corev1.Pod, bool) {}
func (nobody) Ended(*corev1.Pod)         {}

// Picture is what is known of the node's pods. Its methods may be called concurrently.
type Picture struct {
	Processes
	// Left is sent when a pod that uses claims was deleted.
	Left signal.Broadcast

	follower Follower
	// leaves receives a signal when a further pod leaves.
	leaves chan struct{}

	mu sync.Mutex
	// there has the pods of the API server, and leaving the deleted pods that may run, both by UID.
	there   map[types.UID]*corev1.Pod
	leaving map[types.UID]leaving
	// mirrors has the UIDs of the mirrors of static pods, by the static pods' own UIDs.
	mirrors map[types.UID]types.UID
}

// leaving is a deleted pod, with the time of the deletion and whether it was seen to run since.
type leaving struct {
	*corev1.Pod
	at  time.Time
	ran bool
}

// New returns a Picture without pods, which a Watch fills.
func New(p Processes) *Picture {
	return &Picture{Processes: p, follower: nobody{}, leaves: make(chan struct{}, 1), there: map[types.UID]*corev1.Pod{},
		leaving: map[types.UID]leaving{}, mirrors: map[types.UID]types.UID{}}
}

// Handler returns what updates the Picture by the events of an informer of the node's pods.
func (p *Picture) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: p.saw,
		UpdateFunc: func(before, object any) {
			// After a lost watch, the informer reports a new pod of the same name as an update.
			if was, is := before.(*corev1.Pod), object.(*corev1.Pod); was.UID != is.UID {
				p.Delete(was)
			}
			p.saw(object)
		},
		DeleteFunc: func(object any) {
			if pod, ok := informer.Object(object).(*corev1.Pod); ok {
				p.Delete(pod)
			}
		},
	}
}

func (p *Picture) saw(object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	before := p.there[pod.UID]
	for uid, left := range p.leaving {
		if sameStatic(left.Pod, pod) {
			before = left.Pod
			delete(p.leaving, uid)
		}
	}
	p.there[pod.UID] = pod
	delete(p.mirrors, pod.UID)
	static := staticOf(pod)
	if static != "" && p.there[static] == nil && p.there[p.mirrors[static]] == nil {
		p.mirrors[static] = pod.UID
	}
	p.mu.Unlock()
	p.follower.Saw(before, pod)
}

// Delete notes that the API server no longer has the pod, which may be one that only an earlier process saw.
func (p *Picture) Delete(pod *corev1.Pod) {
	runs, err := p.runs(pod)
	runs = runs && err == nil
	p.mu.Lock()
	delete(p.there, pod.UID)
	maps.DeleteFunc(p.mirrors, func(_, mirror types.UID) bool { return mirror == pod.UID })
	claims := false
	for range resourceclaim.PodClaims(pod) {
		claims = true
	}
	if runs || claims {
		p.leaving[pod.UID] = leaving{pod, time.Now(), runs}
		signal.Send(p.leaves)
	}
	var again *corev1.Pod
	for _, other := range p.there {
		if sameStatic(pod, other) {
			again = other // the mirror was made again before it was known that this one is gone
		}
	}
	p.mu.Unlock()
	p.follower.Deleted(pod, runs)
	if claims {
		p.Left.Send()
	}
	if again != nil {
		p.saw(again)
	}
}

// sweep forgets the leaving pods that have no processes any more, and reports whether others leave. It keeps a pod that
// was seen to run while it cannot read whether the pod has processes. It holds no lock while it reads control groups.
func (p *Picture) sweep() (others bool) {
	p.mu.Lock()
	left := maps.Clone(p.leaving)
	p.mu.Unlock()
	ended := map[types.UID]bool{}
	for uid, pod := range left {
		runs, err := p.runs(pod.Pod)
		pod.ran = pod.ran || runs && err == nil
		left[uid] = pod
		ended[uid] = !runs && (err == nil || !pod.ran) && (pod.ran || time.Since(pod.at) >= startsWithin)
	}
	p.mu.Lock()
	for uid, pod := range left {
		switch {
		case p.leaving[uid].Pod != pod.Pod: // its mirror was made again meanwhile
			delete(ended, uid)
		case ended[uid]:
			delete(p.leaving, uid)
		default:
			p.leaving[uid] = pod
		}
	}
	others = len(p.leaving) > 0
	p.mu.Unlock()
	for uid := range ended {
		if ended[uid] {
			p.follower.Ended(left[uid].Pod)
		}
	}
	return others
}

// Pods lists the pods that the API server has, and the deleted ones that run.
func (p *Picture) Pods() (there, leaving []*corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range p.leaving {
		if pod.ran {
			leaving = append(leaving, pod.Pod)
		}
	}
	return slices.Collect(maps.Values(p.there)), leaving
}

// Has reports whether the API server has a pod of that UID.
func (p *Picture) Has(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there[uid] != nil
}

// KnownAs returns the pods of the API server that the kubelet knows by these UIDs. The kubelet knows a static pod by
// another UID, which an annotation of its mirror names. All who may write pods can write it: no pod can pass for an
// existing one by it.
func (p *Picture) KnownAs(uids map[types.UID]bool) map[types.UID]*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[types.UID]*corev1.Pod{}
	for uid := range uids {
		if pod := cmp.Or(p.there[uid], p.there[p.mirrors[uid]]); pod != nil {
			out[uid] = pod
		}
	}
	return out
}

// UsersOf lists the UIDs of the pods that use a claim, in order. It includes leaving pods.
func (p *Picture) UsersOf(namespace, name string) []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	var users []types.UID
	for uid, pod := range p.there {
		if uses(pod, namespace, name) {
			users = append(users, uid)
		}
	}
	for uid, pod := range p.leaving {
		if uses(pod.Pod, namespace, name) {
			users = append(users, uid)
		}
	}
	slices.Sort(users)
	return users
}

// AnyLeaves reports whether one of these pods, or a pod that uses the claim, is leaving.
func (p *Picture) AnyLeaves(namespace, claim string, pods []types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, pod := range p.leaving {
		if uses(pod.Pod, namespace, claim) || slices.Contains(pods, uid) {
			return true
		}
	}
	return false
}

func uses(pod *corev1.Pod, namespace, claim string) bool {
	for name := range resourceclaim.PodClaims(pod) {
		if pod.Namespace == namespace && name == claim {
			return true
		}
	}
	return false
}
