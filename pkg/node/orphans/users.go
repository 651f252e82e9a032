// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Processes reports whether a pod has processes on the node; *podcgroup.Tree implements it.
type Processes interface {
	Running(pod types.UID) (bool, error)
}

// Users are the pods that were seen to use claims on this node. Those that were deleted
// stay until they have no processes.
type Users struct {
	Processes
	// left is signalled when a pod that used a claim was deleted.
	left chan struct{}

	mu      sync.Mutex
	byClaim map[cache.ObjectName]map[types.UID]bool
	deleted map[types.UID]bool
}

// NewUsers returns nobody, until its Handler follows the node's pods.
func NewUsers(p Processes) *Users {
	return &Users{Processes: p, left: make(chan struct{}, 1), byClaim: map[cache.ObjectName]map[types.UID]bool{},
		deleted: map[types.UID]bool{}}
}

// Handler follows an informer of the node's pods.
func (u *Users) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: u.saw, DeleteFunc: u.gone,
		UpdateFunc: func(before, object any) {
			// After a watch that was lost, one that was created again under the name is an update.
			if was, is := before.(*corev1.Pod), object.(*corev1.Pod); was.UID != is.UID {
				u.gone(was)
			}
			u.saw(object)
		},
	}
}

func (u *Users) gone(object any) {
	if pod, ok := informer.Object(object).(*corev1.Pod); ok && u.lost(pod) {
		signal.Send(u.left)
	}
}

func (u *Users) saw(object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for name := range resourceclaim.PodClaims(pod) {
		claim := cache.ObjectName{Namespace: pod.Namespace, Name: name}
		if u.byClaim[claim] == nil {
			u.byClaim[claim] = map[types.UID]bool{}
		}
		u.byClaim[claim][pod.UID] = true
	}
}

// lost reports whether the pod used a claim.
func (u *Users) lost(pod *corev1.Pod) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, pods := range u.byClaim {
		if pods[pod.UID] {
			u.deleted[pod.UID] = true
			return true
		}
	}
	return false
}

// UsersOf lists the pods that were seen to use a claim, in order.
func (u *Users) UsersOf(namespace, name string) []types.UID {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.byClaim[cache.ObjectName{Namespace: namespace, Name: name}]))
}

// leftOf reports whether a pod that used what the record holds was deleted.
func (u *Users) leftOf(r state.Record) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for pod := range u.byClaim[cache.ObjectName{Namespace: r.Namespace, Name: r.Name}] {
		if u.deleted[pod] {
			return true
		}
	}
	return slices.ContainsFunc(r.Pods, func(pod types.UID) bool { return u.deleted[pod] })
}

// forget drops the deleted pods that have no processes any more, or of which nobody
// knows: their claims' records name them by then.
func (u *Users) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for pod := range u.deleted {
		if runs, _ := u.Running(pod); runs {
			continue
		}
		delete(u.deleted, pod)
		for claim, pods := range u.byClaim {
			if delete(pods, pod); len(pods) == 0 {
				delete(u.byClaim, claim)
			}
		}
	}
}
