// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// triedMost is how many of the claims, and of the pods, that wait are tried, the oldest first.
const triedMost = 100

// waiting is something that waits, and its creation in a dry run.
type waiting struct {
	meta   metav1.ObjectMeta
	kind   string
	create func(context.Context) error
}

// tryWaiting finds out which of the claims and pods that wait the policies that bound what a pod may cost the scheduler
// would refuse: those judge what is created, and so do they in a dry run. There is no second notion of the bounds.
func (r Reader) tryWaiting(ctx context.Context, s *doctor.Snapshot) error {
	if !slices.ContainsFunc(s.ValidatingBindings, func(b *admissionv1.ValidatingAdmissionPolicyBinding) bool {
		return slices.Contains(doctor.SearchCost, b.Spec.PolicyName)
	}) {
		return nil
	}
	claims, more := oldest(s.Claims, func(c *resourceapi.ResourceClaim) bool {
		return c.Status.Allocation == nil && c.DeletionTimestamp == nil
	})
	pods, morePods := oldest(s.Pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil &&
			scheduling.AsksForDevices(pod, scheduling.RequestsOf(pod))
	})
	if more || morePods {
		s.Untried = fmt.Sprintf("of those that wait, the oldest %d were tried", triedMost)
	}
	tried := make([]waiting, 0, len(claims)+len(pods))
	for _, c := range claims {
		again := &resourceapi.ResourceClaim{ObjectMeta: again(c.ObjectMeta), Spec: c.Spec}
		tried = append(tried, waiting{c.ObjectMeta, "resourceclaim", func(ctx context.Context) error {
			_, err := r.Client.ResourceV1().ResourceClaims(c.Namespace).Create(ctx, again, dryRun())
			return err
		}})
	}
	for _, pod := range pods {
		again := &corev1.Pod{ObjectMeta: again(pod.ObjectMeta), Spec: pod.Spec}
		tried = append(tried, waiting{pod.ObjectMeta, "pod", func(ctx context.Context) error {
			_, err := r.Client.CoreV1().Pods(pod.Namespace).Create(ctx, again, dryRun())
			return err
		}})
	}
	errs := make([]error, len(tried))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(admitAtOnce)
	for i, w := range tried {
		group.Go(func() error {
			errs[i] = w.create(ctx)
			if status := apierrors.APIStatus(nil); errs[i] != nil && !errors.As(errs[i], &status) {
				return fmt.Errorf("create %s %s/%s again in a dry run: %w", w.kind, w.meta.Namespace, w.meta.Name, errs[i])
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, w := range tried {
		object := w.kind + "/" + w.meta.Name + " -n " + w.meta.Namespace
		if why, is := ofSearchCost(errs[i]); is {
			s.Dear = append(s.Dear, doctor.Refused{Object: object, Why: why})
		} else if errs[i] != nil && !strings.Contains(errs[i].Error(), "exceeded quota") { // which comes after policies
			s.Untried = cmp.Or(s.Untried, object+": "+errs[i].Error())
		}
	}
	return nil
}

// oldest are those that are wanted, the oldest first; more says that there are more of them.
func oldest[T metav1.Object](of []T, wanted func(T) bool) (out []T, more bool) {
	out = slices.DeleteFunc(slices.Clone(of), func(o T) bool { return !wanted(o) })
	slices.SortStableFunc(out, func(a, b T) int {
		return a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time)
	})
	return out[:min(len(out), triedMost)], len(out) > triedMost
}

// again is what an object is created again with, under another name.
func again(of metav1.ObjectMeta) metav1.ObjectMeta {
	out := written(of)
	out.Name, out.GenerateName, out.OwnerReferences = "", "doctor-", of.OwnerReferences
	return out
}

// ofSearchCost is what one of the policies says where it is that which refused.
func ofSearchCost(err error) (why string, is bool) {
	if err == nil {
		return "", false
	}
	for _, name := range doctor.SearchCost {
		if said := err.Error(); strings.Contains(said, "ValidatingAdmissionPolicy '"+name+"' ") {
			_, why, _ = strings.Cut(said, " denied request: ")
			return strings.TrimSuffix(why, "."), true
		}
	}
	return "", false
}
