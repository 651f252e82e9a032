// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// placing is how long the scheduler may take to place a pod when its victims are gone,
	// leaving how long these may take beyond the time that they were given.
	placing = 30 * time.Second
	leaving = 2 * time.Minute
	// evictingMost is how long it may take for all of a pod's victims together, first to try it and
	// then to evict them.
	evictingMost = 5 * time.Second
)

// notPlaced is when pods are evicted again for the pods of an owner that were not placed though
// others went for them.
var notPlaced = backoff.Doubling{Least: time.Minute, Most: 15 * time.Minute}

// eviction is a pod for which others are evicted from a node. No others are evicted from it
// until the pod is placed, or has had the time for it.
type eviction struct {
	pod types.UID
	// claims are those that the pod waits for. Another pod that waits for one of them can go
	// nowhere else.
	claims []types.UID
	object corev1.ObjectReference
	// owner is ownerOf the pod.
	owner   string
	victims []types.UID
	// until is when the victims should be gone, gone when they were.
	until, gone time.Time
}

// evicting is how many of the evictions are such.
func (p *Preemptor) evicting(such func(*eviction) bool) (n int) {
	for _, e := range p.evictions {
		if such(e) {
			n++
		}
	}
	return n
}

// finish ends the evictions whose pods are placed or gone, or had the time for it. there has all pods.
func (p *Preemptor) finish(ctx context.Context, there map[types.UID]*corev1.Pod, now time.Time) {
	for name, e := range p.evictions {
		pod := there[e.pod]
		left := slices.ContainsFunc(e.victims, func(uid types.UID) bool { return there[uid] != nil })
		if !left && e.gone.IsZero() {
			e.gone = now
		}
		late := left && now.After(e.until) || !left && now.Sub(e.gone) > placing
		switch {
		case pod == nil:
			delete(p.evictions, name)
			p.failures.add(e.owner, now)
		case pod.Spec.NodeName != "":
			delete(p.evictions, name)
			delete(p.failures, e.owner)
			p.Events.Clear(e.pod, v1alpha1.ReasonNotPreempted)
		case late:
			delete(p.evictions, name)
			again := p.failures.add(e.owner, now)
			why := "the scheduler has not placed this pod since they ended: others may have taken their GPUs"
			if left {
				why = "they have not ended in time"
			}
			p.Events.Warn(e.object, v1alpha1.ReasonNotPreempted,
				fmt.Sprintf("Pods of lower priority were evicted from node %s, and %s. No others are evicted for %s", name, why,
					again))
			klog.FromContext(ctx).Info("A pod was not placed though others were evicted for it", "pod", klog.KObj(pod), "node",
				name, "victimsLeft", left, "again", again)
		}
	}
}

// evict evicts the victims for a pod: none where one of them may not be evicted, as far as
// that can be tried before, or where the pod has not waited in the same way until then.
func (p *Preemptor) evict(
	ctx context.Context, pod *corev1.Pod, claims []types.UID, o *option, w *Wait, now time.Time,
) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(pod), "node", o.node.Name)
	object := report.Pod(pod.Namespace, pod.Name, pod.UID)
	refused := func(err error) {
		// An Event for each node would use up what client-go lets be told of one object.
		p.Events.WarnOf(object, v1alpha1.ReasonNotPreempted, reasonOf(err), fmt.Sprintf("The API server does not let a pod "+
			"of lower priority be evicted from node %s, whose GPUs this pod could have: %s", o.node.Name, reasonOf(err)))
	}
	trying, cancel := context.WithTimeout(ctx, evictingMost)
	defer cancel()
	if err := p.refused.Try(trying, p.Client, o.victims, shortened, now); err != nil {
		refused(err)
		if !podstate.Refused(err) {
			return err
		}
		logger.Info("Looking for other pods to evict: the API server refused to evict some", "for",
			podstate.RefusedFor, "err", err)
		w.miss(now)
		return nil
	}
	switch current, err := podstate.Current(ctx, p.Client, pod.Namespace, pod.Name, pod.UID); {
	case err != nil:
		return err
	case current == nil || !preempts(current):
		logger.V(4).Info("No pod is evicted: the pod does not wait as it did when victims were looked for")
		return nil
	}
	e := &eviction{pod: pod.UID, claims: claims, object: object, owner: ownerOf(pod), victims: o.uids(),
		until: now.Add(leaving)}
	for _, victim := range o.victims {
		if until := now.Add(graceOf(victim) + leaving); until.After(e.until) {
			e.until = until
		}
	}
	p.evictions[o.node.Name] = e
	evicted := 0
	evicting, cancel := context.WithTimeout(ctx, evictingMost)
	defer cancel()
	for i, victim := range o.victims {
		if err := podstate.Evict(evicting, p.Client, victim, shortened(victim)); err != nil {
			if p.goes(ctx, victim) {
				continue
			}
			// What of the others is left is looked at again when those that were evicted are gone.
			if podstate.Refused(err) {
				p.refused[victim.UID] = now.Add(podstate.RefusedFor)
			}
			e.victims = e.victims[:i]
			if evicted == 0 {
				delete(p.evictions, o.node.Name)
				refused(err)
			}
			return fmt.Errorf("evict pod %s for one of higher priority: %w", klog.KObj(victim), err)
		}
		if evicted++; evicted == 1 {
			w.missed = 0
			logger.Info("Evicts pods for one of higher priority", "priority", corev1helpers.PodPriority(pod), "victims",
				klog.KObjSlice(o.victims))
			p.Events.Normal(object, v1alpha1.ReasonPreempting, fmt.Sprintf("%s evicted from node %s to free GPUs for this "+
				"pod: the scheduler can place it when they have ended", counting(len(o.victims)), o.node.Name))
		}
		p.Events.Warn(report.Pod(victim.Namespace, victim.Name, victim.UID), v1alpha1.ReasonPreempted,
			fmt.Sprintf("The pod was evicted to free GPUs of node %s for pod %s, whose priority is %d; this pod's is %d",
				o.node.Name, pod.UID, corev1helpers.PodPriority(pod), corev1helpers.PodPriority(victim)))
	}
	if evicted == 0 {
		// They all go by themselves.
		delete(p.evictions, o.node.Name)
		w.miss(now)
	}
	return nil
}

// goes reports whether a pod that could not be evicted is gone or leaves, as far as can be said.
func (p *Preemptor) goes(ctx context.Context, pod *corev1.Pod) bool {
	current, err := podstate.Current(ctx, p.Client, pod.Namespace, pod.Name, pod.UID)
	return err == nil && (current == nil || current.DeletionTimestamp != nil && pod.DeletionTimestamp == nil)
}

func counting(pods int) string {
	if pods == 1 {
		return "1 pod of lower priority is"
	}
	return fmt.Sprintf("%d pods of lower priority are", pods)
}

// reasonOf says why an eviction was refused without the names of others' objects.
func reasonOf(err error) string {
	switch {
	case podstate.Refused(err):
		return fmt.Sprintf("a webhook or an admission policy refuses it, or %s has no permission to evict pods. For %s "+
			"others are looked for in its place", v1alpha1.ControllerName, podstate.RefusedFor)
	case apierrors.IsTooManyRequests(err):
		return "a PodDisruptionBudget keeps it"
	}
	return cmp.Or(string(apierrors.ReasonForError(err)), "it did not answer, or said that it has to be asked later")
}
