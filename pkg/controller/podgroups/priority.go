// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// protection is the finalizer by which kube-controller-manager keeps a PodGroup that pods
// use.
const protection = schedulingapi.GroupName + "/podgroup-protection"

// outlived reports whether a PodGroup of that class is left of pods that are gone: a job that was
// created again under its name may have another priority. While pods have a node, or wait with
// that class, the PodGroup is theirs.
func (g *gang) outlived(class string) bool {
	return class != g.priorityClass && !g.placed && !slices.ContainsFunc(g.waiting, func(pod *corev1.Pod) bool {
		return pod.Spec.PriorityClassName == class
	})
}

// changePriority makes a PodGroup again with the priority of the gang's pods: it cannot be
// changed, and the scheduler places no pod whose priority is another one.
func (r *reconciler) changePriority(
	ctx context.Context, group *schedulingapi.PodGroup, g *gang,
) (*schedulingapi.PodGroup, error) {
	before := group.Spec.PriorityClassName
	if err := r.discard(ctx, group); err != nil {
		return nil, fmt.Errorf("remove it, which has priority class %q, and its pods have %q: %w", before, g.priorityClass,
			err)
	}
	klog.FromContext(ctx).Info("Removed the PodGroup of a gang whose pods have another priority", "podGroup",
		klog.KObj(group), "before", before, "priorityClass", g.priorityClass)
	return r.create(ctx, toolscache.MetaObjectToName(group), g)
}

// discard removes a PodGroup although pods name it.
func (r *reconciler) discard(ctx context.Context, group *schedulingapi.PodGroup) error {
	groups := r.Client.PodGroups(group.Namespace)
	this := &metav1.Preconditions{UID: &group.UID}
	if err := groups.Delete(ctx, group.Name, metav1.DeleteOptions{Preconditions: this}); err != nil {
		return ignoreGone(err)
	}
	now, err := groups.Get(ctx, group.Name, metav1.GetOptions{})
	if err != nil || now.UID != group.UID {
		return ignoreGone(err)
	}
	now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == protection })
	_, err = groups.Update(ctx, now, metav1.UpdateOptions{})
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// tellPriority says to pods that wait why they do so in vain.
func (r *reconciler) tellPriority(group observed, g *gang) {
	if group.foreign {
		return
	}
	others := slices.DeleteFunc(slices.Clone(g.waiting), func(pod *corev1.Pod) bool {
		return pod.Spec.PriorityClassName == group.priorityClass
	})
	r.warn(others, func(pod *corev1.Pod) string {
		return fmt.Sprintf("The pod cannot be placed with its gang: the gang's PodGroup has %s, the pod has %s, and the "+
			"pods of a gang have one priority. Delete the pods of the gang, and create them with the same one",
			classText(group.priorityClass), classText(pod.Spec.PriorityClassName))
	})
}

func classText(class string) string {
	if class == "" {
		return "no priority class"
	}
	return "priority class " + class
}
