// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// gang are the pods of a PodGroup that have a node and do not leave it.
type gang struct {
	pods []*corev1.Pod
	// least is how many of them it needs; all, where that is not known or they are only disrupted together.
	least int
}

// listGangs is what the pods say of gangs, and the PodGroups, which are asked for only where
// there are such pods.
func (p *Preemptor) listGangs(ctx context.Context, pods []*corev1.Pod) (map[toolscache.ObjectName]*gang, error) {
	gangs := map[toolscache.ObjectName]*gang{}
	for _, pod := range pods {
		name, is := podstate.Gang(pod)
		if !is || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
			continue
		}
		if gangs[name] == nil {
			gangs[name] = &gang{}
		}
		gangs[name].pods = append(gangs[name].pods, pod)
		gangs[name].least++
	}
	if len(gangs) == 0 {
		return gangs, nil
	}
	for _, g := range gangs {
		// Or the same victims would look like others the next time.
		slices.SortFunc(g.pods, byKey)
	}
	// The API server's cache will do: a gang changes its size seldom.
	list, err := p.Groups.PodGroups(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		return gangs, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the PodGroups, to know how many pods a gang can do without: %w", err)
	}
	for _, group := range list.Items {
		g := gangs[toolscache.ObjectName{Namespace: group.Namespace, Name: group.Name}]
		mode := group.Spec.DisruptionMode
		if g == nil || mode != nil && mode.All != nil {
			continue
		}
		g.least = 1
		if policy := group.Spec.SchedulingPolicy.Gang; policy != nil {
			g.least = int(policy.MinCount)
		}
	}
	return gangs, nil
}
