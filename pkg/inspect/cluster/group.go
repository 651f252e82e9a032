// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

// fillGroup reads the pods that a pod is placed with, and how many of them are needed at once.
// What may not be read, or is not served, is a note.
func (r Reader) fillGroup(ctx context.Context, in *why.Input) error {
	group := in.Pod.Spec.SchedulingGroup
	if group == nil || group.PodGroupName == nil {
		return nil
	}
	name, namespace := *group.PodGroupName, in.Pod.Namespace
	pods, err := list[*corev1.Pod](ctx, r.Client.CoreV1().Pods(namespace), metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		in.Notes = append(in.Notes, "You may not list pods of namespace "+namespace+": whether the gang of the pod finds "+
			"room is not known.")
		return nil
	case err != nil:
		return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	found := &why.Group{Name: name}
	known := claimsIn(in.Claims, namespace)
	for _, pod := range pods {
		if gpuclaim.Ended(pod) || pod.Spec.SchedulingGroup == nil ||
			ptr.Deref(pod.Spec.SchedulingGroup.PodGroupName, "") != name {
			continue
		}
		member := why.Member{Pod: pod}
		if pod.Spec.NodeName == "" {
			claims, missing, err := r.claimsOf(ctx, pod, known)
			if err != nil {
				return err
			}
			member.Claims, member.Incomplete = claims, len(missing) > 0
		}
		found.Members = append(found.Members, member)
	}
	in.Group = found
	object, err := r.Client.SchedulingV1beta1().PodGroups(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		in.Notes = append(in.Notes, fmt.Sprintf("How many pods of the gang are needed at once is not known: read PodGroup "+
			"%s: %v.", name, err))
	case object.Spec.SchedulingPolicy.Gang != nil:
		found.Least = int(object.Spec.SchedulingPolicy.Gang.MinCount)
	}
	return nil
}
