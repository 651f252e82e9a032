// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// domain are the nodes with a label.
type domain struct{ key, value string }

// keptOff are the pods that keep a pod off nodes by their required anti-affinity, or by its own.
type keptOff map[domain][]*corev1.Pod

// keepOff finds the pods that keep another off nodes.
func (s situation) keepOff(pod *corev1.Pod) keptOff {
	kept := keptOff{}
	for _, n := range s.nodes {
		for _, other := range n.pods {
			keeps := func(term corev1.PodAffinityTerm, of, selected *corev1.Pod) {
				value, has := n.Labels[term.TopologyKey]
				if at := (domain{term.TopologyKey, value}); has && s.selectedBy(term, of.Namespace, selected) {
					kept[at] = append(kept[at], other)
				}
			}
			for _, term := range antiAffinityOf(other) {
				keeps(term, other, pod)
			}
			for _, term := range antiAffinityOf(pod) {
				keeps(term, pod, other)
			}
		}
	}
	return kept
}

// from are those that keep the pod off a node.
func (k keptOff) from(n *node) []*corev1.Pod {
	if len(k) == 0 {
		return nil
	}
	var found []*corev1.Pod
	for key, value := range n.Labels {
		found = append(found, k[domain{key, value}]...)
	}
	return found
}

func antiAffinityOf(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// selectedBy reports whether a term of a pod of that namespace selects another pod.
func (s situation) selectedBy(term corev1.PodAffinityTerm, namespace string, pod *corev1.Pod) bool {
	named := term.Namespaces
	if len(named) == 0 && term.NamespaceSelector == nil {
		named = []string{namespace}
	}
	return (slices.Contains(named, pod.Namespace) || s.inNamespaces(term.NamespaceSelector, pod.Namespace)) &&
		scheduling.ReadSelector(term.LabelSelector).Matches(labels.Set(pod.Labels))
}

func (s situation) inNamespaces(selector *metav1.LabelSelector, namespace string) bool {
	return selector != nil && scheduling.ReadSelector(selector).Matches(labels.Set(s.namespaces[namespace]))
}

// where is where a pod can be by its own wishes and those of its volumes; nil where the scheduler has yet to choose
// among volumes, or they are of a kind that is not looked at here.
func (p *Preemptor) where(ctx context.Context, pod *corev1.Pod) (scheduling.Where, error) {
	var bound []*corev1.PersistentVolume
	for i := range pod.Spec.Volumes {
		v, name := &pod.Spec.Volumes[i], ""
		switch {
		case v.ConfigMap != nil, v.Secret != nil, v.EmptyDir != nil, v.DownwardAPI != nil, v.Projected != nil,
			v.HostPath != nil, v.Image != nil:
			continue
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(pod, v)
		default:
			return nil, nil
		}
		pv, err := p.volume(ctx, pod.Namespace, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("look where the volumes of pod %s can be: %w", klog.KObj(pod), err)
		case pv == nil:
			return nil, nil
		}
		bound = append(bound, pv)
	}
	wanted := scheduling.Wanted(pod)
	return func(node *corev1.Node) bool {
		return wanted(node) && !slices.ContainsFunc(bound, func(pv *corev1.PersistentVolume) bool {
			return volume.CheckNodeAffinity(pv, node.Labels) != nil
		})
	}, nil
}

// volume is the one that a claim is bound to; nil where it is bound to none, or where one pod alone may use it.
func (p *Preemptor) volume(ctx context.Context, namespace, name string) (*corev1.PersistentVolume, error) {
	claim, err := p.Client.PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || claim.Status.Phase != corev1.ClaimBound ||
		slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
		return nil, err
	}
	return p.Client.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
}
