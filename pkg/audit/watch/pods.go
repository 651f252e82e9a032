// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// fetchAgain is how soon the pods of a claim are read again where the node's pods are not
// watched: their containers start one after the other, and start anew.
const fetchAgain = 10 * time.Second

// Pods are the node's pods by the UIDs that the kubelet knows. It is safe for concurrent
// use.
type Pods struct {
	// Fetch reads the pods that use a claim, where the node's pods are not watched; else it
	// is nil.
	Fetch func(ctx context.Context, namespace, name string) ([]*corev1.Pod, error)
	Clock clock.PassiveClock

	mu    sync.Mutex
	byUID map[types.UID]*corev1.Pod
	// fetched is when the pods of a claim were read.
	fetched map[cache.ObjectName]time.Time
}

// Handler follows an informer of the node's pods, which keeps what deviceplugin.Trim does.
func (p *Pods) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: p.saw, UpdateFunc: func(_, object any) { p.saw(object) },
		DeleteFunc: func(object any) {
			if pod, ok := informer.Object(object).(*corev1.Pod); ok {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.remove(pod.UID)
			}
		},
	}
}

func (p *Pods) saw(object any) {
	if pod, ok := object.(*corev1.Pod); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.add(pod)
	}
}

func (p *Pods) add(pod *corev1.Pod) {
	if p.byUID == nil {
		p.byUID = map[types.UID]*corev1.Pod{}
	}
	p.byUID[pod.UID] = pod
	// The kubelet knows a static pod by another UID. Whoever writes pods can write such an
	// annotation; no pod is taken for another one by it.
	uid := types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
	if other := p.byUID[uid]; uid != "" && (other == nil || other.UID == pod.UID) {
		p.byUID[uid] = pod
	}
}

func (p *Pods) remove(uid types.UID) {
	maps.DeleteFunc(p.byUID, func(_ types.UID, pod *corev1.Pod) bool { return pod.UID == uid })
}

// Of are the pods with these UIDs, as far as they are known. Those of the claims' pods that
// are not, and are not watched, are read.
func (p *Pods) Of(ctx context.Context, uids map[types.UID]bool, claims []audit.Claim) map[types.UID]*corev1.Pod {
	if p.Fetch != nil {
		p.fetch(ctx, uids, claims)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[types.UID]*corev1.Pod{}
	for uid := range uids {
		if pod := p.byUID[uid]; pod != nil {
			out[uid] = pod
		}
	}
	return out
}

// fetch reads the pods of the claims that pods with these UIDs use, each claim's now and
// then, and forgets all others.
func (p *Pods) fetch(ctx context.Context, uids map[types.UID]bool, claims []audit.Claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Clock.Now()
	fetched := map[cache.ObjectName]time.Time{}
	known := map[types.UID]*corev1.Pod{}
	for _, c := range claims {
		if !slices.ContainsFunc(c.Pods, func(uid types.UID) bool { return uids[uid] }) {
			continue
		}
		name := cache.ObjectName{Namespace: c.Namespace, Name: c.Name}
		fetched[name] = p.fetched[name]
		for _, uid := range c.Pods {
			if pod := p.byUID[uid]; pod != nil {
				known[uid] = pod
			}
		}
		if now.Sub(fetched[name]) < fetchAgain {
			continue
		}
		fetched[name] = now
		pods, err := p.Fetch(ctx, c.Namespace, c.Name)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("The pods of a claim cannot be read, so that nothing is said of what they use",
				"claim", name, "err", err)
		}
		for _, pod := range pods {
			known[pod.UID] = deviceplugin.Trim(pod)
		}
	}
	p.byUID, p.fetched = known, fetched
}
