// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/moves"
)

// Moves reads what moves are planned from, and the pod of that name, if one is named.
func (r Reader) Moves(ctx context.Context, name string) (c moves.Cluster, pod *corev1.Pod, notes []string, err error) {
	in, err := r.situation(ctx)
	if err != nil {
		return c, nil, nil, err
	}
	if in.OthersUnknown || in.NodesUnknown {
		return c, nil, nil, errors.New("you may not list what moves are planned from: ask for a ClusterRole with list on " +
			"nodes, pods and resourceclaims.resource.k8s.io")
	}
	c = moves.Cluster{Snapshot: in.Snapshot, Engine: scheduling.NewEngine(scheduling.ExpressionsMost)}
	if c.Pods, err = r.pods(ctx, "status.phase!=Succeeded,status.phase!=Failed"); err != nil {
		return c, nil, nil, err
	}
	c.Budgets, err = list[*policyv1.PodDisruptionBudget](ctx,
		r.Client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll), metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		in.Notes = append(in.Notes, "You may not list poddisruptionbudgets.policy, which may keep these pods from moving.")
	} else if err != nil {
		return c, nil, nil, fmt.Errorf("list PodDisruptionBudgets: %w", err)
	}
	known := map[string]map[string]*resourceapi.ResourceClaim{}
	c.Read = func(ctx context.Context, pod *corev1.Pod) (scheduling.Pod, error) {
		if known[pod.Namespace] == nil {
			known[pod.Namespace] = claimsIn(in.Claims, pod.Namespace)
		}
		claims, missing, err := r.claimsOf(ctx, pod, known[pod.Namespace])
		if len(missing) > 0 {
			return scheduling.Pod{}, err
		}
		return scheduling.Pod{Pod: pod, Claims: claims}, err
	}
	if name == "" {
		return c, nil, in.Notes, nil
	}
	pod, err = r.Client.CoreV1().Pods(r.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return c, nil, nil, cannotRead(err, "pod", "pods", r.Namespace, name)
	}
	return c, pod, in.Notes, nil
}
