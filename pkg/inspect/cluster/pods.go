// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

// podReader reads the pods that hold GPUs without a claim. They are asked for only
// where a node shows that there are some, and again only when it shows others: a
// cluster has many pods, and few of these, if any.
type podReader struct {
	Reader
	key       string // inspect.WithoutClaimKey when they were read
	pods      []*corev1.Pod
	forbidden bool
}

// fill adds the pods to what was read. With an error, they are those that were read
// before.
func (p *podReader) fill(ctx context.Context, in *inspect.Input) error {
	err := p.update(ctx, inspect.WithoutClaimKey(in.Slices))
	in.Pods, in.PodsUnknown = p.pods, p.forbidden
	if p.forbidden {
		in.Notes = append(in.Notes, "You may not list pods, and some hold GPUs without a claim: of them only what the "+
			"nodes take off each GPU is shown.")
	}
	return err
}

func (p *podReader) update(ctx context.Context, key string) error {
	if key == p.key {
		return nil
	}
	pods, err := p.read(ctx, key)
	forbidden := apierrors.IsForbidden(err)
	if err != nil && !forbidden {
		return fmt.Errorf("list the pods that hold GPUs without a claim: %w", err)
	}
	p.key, p.pods, p.forbidden = key, pods, forbidden
	return nil
}

func (p *podReader) read(ctx context.Context, key string) ([]*corev1.Pod, error) {
	if key == "" {
		return nil, nil
	}
	var found []*corev1.Pod
	err := each(ctx, p.Client.CoreV1().Pods(metav1.NamespaceAll), metav1.ListOptions{FieldSelector: p.podFields()},
		func(pod *corev1.Pod) {
			if deviceplugin.Holds(pod) {
				found = append(found, deviceplugin.Trim(pod))
			}
		})
	return found, err
}

// readBound reads the pods that are on nodes, with what they request: none where they are not asked for, or the user
// may not.
func (r Reader) readBound(ctx context.Context) ([]*corev1.Pod, error) {
	if !r.Bound || r.Node != "" {
		return nil, nil
	}
	bound, err := r.pods(ctx, r.podFields())
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return bound, err
}

// podFields selects the pods that are on nodes and have not ended.
func (r Reader) podFields() string {
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "")
	if r.Node != "" {
		bound = fields.OneTermEqualSelector("spec.nodeName", r.Node)
	}
	return fields.AndSelectors(bound,
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()
}
