// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

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
