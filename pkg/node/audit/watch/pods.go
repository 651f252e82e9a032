// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
)

// fetchAgain is how soon the pods of a claim are read again, where the node's pods are not
// watched, while one of them is on a GPU: their containers start one after the other, and
// restart.
const fetchAgain = 10 * time.Second

// fetchMost is of how many claims that a new pod may have joined the pods are read in one look.
const fetchMost = 16

// Pods finds the node's pods by the UIDs that the kubelet knows.
type Pods struct {
	// Watched has the node's pods if they are watched. Otherwise Fetch reads the pods that use a claim.
	Watched *pods.Picture
	Fetch   func(ctx context.Context, namespace, name string) ([]*corev1.Pod, error)
	Clock   clock.PassiveClock

	// byUID are those that were fetched.
	byUID map[types.UID]*corev1.Pod
	// fetched are the pods of claims, newcomers the UIDs on GPUs that no pod has, since when. behind says that claims
	// that one of them may have joined are still to be read.
	fetched   map[cache.ObjectName]fetched
	newcomers map[types.UID]time.Time
	behind    bool
}

type fetched struct {
	at   time.Time
	pods []*corev1.Pod
	// failed says that the pods are those of before.
	failed bool
}

// Of are the pods with these UIDs, as far as they are known. Those of the claims' pods that
// are not, and are not watched, are read; unread says that some could not be.
func (p *Pods) Of(
	ctx context.Context, uids map[types.UID]bool, claims []audit.Claim,
) (out map[types.UID]*corev1.Pod, unread bool) {
	if p.Watched == nil {
		p.fetch(ctx, uids, claims)
	}
	unread = p.behind
	for _, f := range p.fetched {
		unread = unread || f.failed
	}
	return p.known(uids), unread
}

func (p *Pods) known(uids map[types.UID]bool) map[types.UID]*corev1.Pod {
	if p.Watched != nil {
		return p.Watched.KnownAs(uids)
	}
	out := map[types.UID]*corev1.Pod{}
	for uid := range uids {
		if pod := p.byUID[uid]; pod != nil {
			out[uid] = pod
		}
	}
	return out
}

// namespaceOf is the namespace of the pod with that UID; empty where it is not known.
func (p *Pods) namespaceOf(uid types.UID) string {
	if pod := p.known(map[types.UID]bool{uid: true})[uid]; pod != nil {
		return pod.Namespace
	}
	return ""
}

// fetch reads pods of the claims, and forgets all others. A pod that is new on a GPU is of a claim that was prepared
// for it, or it may have joined any that was in use before: those are read once for all pods that came until then, and
// some at a time, for the next look is soon.
func (p *Pods) fetch(ctx context.Context, uids map[types.UID]bool, claims []audit.Claim) {
	now := p.Clock.Now()
	newcomers, joined := map[types.UID]time.Time{}, time.Time{}
	for uid := range uids {
		if p.byUID[uid] != nil {
			continue
		}
		since, known := p.newcomers[uid]
		if !known {
			since = now
		}
		newcomers[uid] = since
		ofClaim := slices.ContainsFunc(claims, func(c audit.Claim) bool { return slices.Contains(c.Pods, uid) })
		if !ofClaim && since.After(joined) {
			joined = since
		}
	}
	known, byUID, left := map[cache.ObjectName]fetched{}, map[types.UID]*corev1.Pod{}, fetchMost
	p.behind = false
	for _, c := range claims {
		name := cache.ObjectName{Namespace: c.Namespace, Name: c.Name}
		before, is := p.fetched[name]
		old := !is || now.Sub(before.at) >= fetchAgain
		on := slices.ContainsFunc(c.Pods, func(uid types.UID) bool { return uids[uid] }) ||
			slices.ContainsFunc(before.pods, func(pod *corev1.Pod) bool { return uids[pod.UID] })
		isNew := slices.ContainsFunc(c.Pods, func(uid types.UID) bool { return newcomers[uid].After(before.at) })
		mayBeOf := joined.After(before.at)
		switch {
		case isNew, old && (on || before.failed), old && mayBeOf && left > 0:
			if !isNew && !on {
				left--
			}
			before, is = p.fetchPods(ctx, name, before.pods, now), true
		case mayBeOf:
			p.behind = true
		}
		if !is {
			continue
		}
		known[name] = before
		for _, pod := range before.pods {
			byUID[pod.UID] = pod
		}
	}
	p.byUID, p.fetched, p.newcomers = byUID, known, newcomers
}

// fetchPods reads the pods of a claim; where that fails, they are as before.
func (p *Pods) fetchPods(ctx context.Context, name cache.ObjectName, before []*corev1.Pod, now time.Time) fetched {
	found, err := p.Fetch(ctx, name.Namespace, name.Name)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The pods of a claim cannot be read", "claim", name, "err", err)
		return fetched{now, before, true}
	}
	out := fetched{at: now}
	for _, pod := range found {
		out.pods = append(out.pods, deviceplugin.Trim(pod))
	}
	return out
}
