// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// listRules lists the DeviceTaintRules; none where the API server does not know them.
func (p *preemptor) listRules(ctx context.Context) ([]resourceapi.DeviceTaintRule, error) {
	// The API server's cache will do: the scheduler has its own.
	list, err := p.Rules.DeviceTaintRules().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("list the DeviceTaintRules, without which pods may be evicted in vain; apply "+
			"deployments/options/preemption, which allows it: %w", err)
	case err != nil:
		return nil, fmt.Errorf("list the DeviceTaintRules, without which pods may be evicted in vain: %w", err)
	}
	return list.Items, nil
}

// taint gives devices the taints of the rules that select them, as the scheduler does.
func taint(offered []*resourceapi.ResourceSlice, rules []resourceapi.DeviceTaintRule) {
	for _, slice := range offered {
		slice.Spec.Devices = slices.Clone(slice.Spec.Devices)
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			for _, rule := range rules {
				if matches(rule.Spec.DeviceSelector, slice.Spec, device.Name) {
					device.Taints = append(slices.Clip(device.Taints), rule.Spec.Taint)
				}
			}
		}
	}
}

// matches says whether a rule's selector selects a device. One that says nothing selects all,
// none selects nothing.
func matches(s *resourceapi.DeviceTaintSelector, of resourceapi.ResourceSliceSpec, device string) bool {
	is := func(wanted *string, value string) bool { return wanted == nil || *wanted == value }
	return s != nil && is(s.Driver, of.Driver) && is(s.Pool, of.Pool.Name) && is(s.Device, device)
}
