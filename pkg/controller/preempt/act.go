// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// placing is how long the scheduler may take to place a pod when its victims are gone,
	// leaving how long these may take beyond the time that they were given.
	placing = 30 * time.Second
	leaving = 2 * time.Minute
	// againAfter is when pods are evicted again for a pod that was not placed though others
	// went for it; after twice as long each time, at most againMost.
	againAfter = time.Minute
	againMost  = 15 * time.Minute
)

// flight is a pod for which others are evicted from a node. No others are evicted from it
// until the pod is placed, or has had the time for it.
type flight struct {
	pod     types.UID
	object  corev1.ObjectReference
	victims []types.UID
	// until is when the victims should be gone, gone when they were.
	until, gone time.Time
}

func (p *preemptor) inFlight(pod types.UID) bool {
	for _, f := range p.flights {
		if f.pod == pod {
			return true
		}
	}
	return false
}

// land ends the flights whose pods are placed or gone, or had the time for it.
func (p *preemptor) land(ctx context.Context, pods []*corev1.Pod, now time.Time) {
	there := map[types.UID]*corev1.Pod{}
	for _, pod := range pods {
		there[pod.UID] = pod
	}
	for name, f := range p.flights {
		pod := there[f.pod]
		left := slices.ContainsFunc(f.victims, func(uid types.UID) bool { return there[uid] != nil })
		if !left && f.gone.IsZero() {
			f.gone = now
		}
		late := left && now.After(f.until) || !left && now.Sub(f.gone) > placing
		switch {
		case pod == nil || pod.Spec.NodeName != "":
			delete(p.flights, name)
			if pod != nil {
				p.Events.Clear(f.pod, v1alpha1.ReasonNotPreempted)
			}
		case late:
			delete(p.flights, name)
			w := p.waits[f.pod]
			if w == nil {
				w = &wait{}
				p.waits[f.pod] = w
			}
			again := min(againAfter<<min(w.failed, 10), againMost)
			w.failed++
			w.after = now.Add(again)
			why := "the scheduler has not placed this pod since they ended: others may have taken their GPUs"
			if left {
				why = "they have not ended in time"
			}
			p.Events.Warn(f.object, v1alpha1.ReasonNotPreempted,
				fmt.Sprintf("Pods of lower priority were evicted from node %s, and %s. No others are evicted for %s", name, why,
					again))
			klog.FromContext(ctx).Info("A pod was not placed though others were evicted for it", "pod", klog.KObj(pod), "node",
				name, "victimsLeft", left, "again", again)
		}
	}
}

// evict evicts the victims for a pod: none where one of them may not be evicted.
func (p *preemptor) evict(ctx context.Context, pod *corev1.Pod, o *option, now time.Time) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(pod), "node", o.node.Name)
	object := report.Pod(pod.Namespace, pod.Name, pod.UID)
	for _, victim := range o.victims {
		if err := p.evictOne(ctx, victim, metav1.DryRunAll); err != nil {
			p.Events.Warn(object, v1alpha1.ReasonNotPreempted, fmt.Sprintf("The API server does not let a pod of lower "+
				"priority be evicted from node %s, whose GPUs this pod could have: %s", o.node.Name, reasonOf(err)))
			return fmt.Errorf("try whether pod %s may be evicted: %w", klog.KObj(victim), err)
		}
	}
	f := &flight{pod: pod.UID, object: object, victims: o.uids(), until: now.Add(leaving)}
	for _, victim := range o.victims {
		grace := time.Duration(ptr.Deref(victim.Spec.TerminationGracePeriodSeconds,
			corev1.DefaultTerminationGracePeriodSeconds))
		if until := now.Add(grace*time.Second + leaving); until.After(f.until) {
			f.until = until
		}
	}
	p.flights[o.node.Name] = f
	logger.Info("Evicts pods for one of higher priority", "priority", corev1helpers.PodPriority(pod), "victims",
		klog.KObjSlice(o.victims))
	p.Events.Normal(object, v1alpha1.ReasonPreempting, fmt.Sprintf("%s evicted from node %s to free GPUs for this pod: "+
		"the scheduler can place it when they have ended", counting(len(o.victims)), o.node.Name))
	for i, victim := range o.victims {
		err := p.evictOne(ctx, victim)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			// It has gone by itself.
			continue
		}
		if err != nil {
			// What of the others is left is looked at anew when those that were evicted are gone.
			f.victims = f.victims[:i]
			return fmt.Errorf("evict pod %s for one of higher priority: %w", klog.KObj(victim), err)
		}
		p.Events.Warn(report.Pod(victim.Namespace, victim.Name, victim.UID), v1alpha1.ReasonPreempted,
			fmt.Sprintf("The pod was evicted to free GPUs of node %s for pod %s, whose priority is %d; this pod's is %d",
				o.node.Name, pod.UID, corev1helpers.PodPriority(pod), corev1helpers.PodPriority(victim)))
	}
	return nil
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
	case apierrors.IsTooManyRequests(err):
		return "a PodDisruptionBudget keeps it"
	case apierrors.IsForbidden(err):
		return v1alpha1.ControllerName + " has no permission to evict pods"
	}
	return cmp.Or(string(apierrors.ReasonForError(err)), "it did not answer")
}

// evictOne evicts a pod, and no other of that name.
func (p *preemptor) evictOne(ctx context.Context, pod *corev1.Pod, dryRun ...string) error {
	return p.Client.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &pod.UID}, DryRun: dryRun,
		},
	})
}
