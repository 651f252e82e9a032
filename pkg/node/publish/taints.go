// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// taints close GPUs and instances to new claims, by UUID, beside the taints of all devices.
type taints map[string][]resourceapi.DeviceTaint

// taints are those of GPUs that are unhealthy, or that claims hold by other names.
func (s snapshot) taints() taints {
	out := taints{}
	for uuid, u := range s.unhealthy {
		out.add(uuid, s.unhealthyTaint(u.Reason))
	}
	for uuid, name := range s.renamed() {
		out.add(uuid, closing(v1alpha1.TaintWithdrawn, "held-as-"+name))
	}
	return out
}

func (s snapshot) unhealthyTaint(why string) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: v1alpha1.TaintUnhealthy, Value: why,
		Effect: cmp.Or(s.unhealthyEffect, resourceapi.DeviceTaintEffectNoSchedule)}
}

// closing is a taint that keeps new claims off.
func closing(key, value string) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule}
}

// add adds a taint, unless there is one of its key.
func (t taints) add(uuid string, taint resourceapi.DeviceTaint) {
	if !slices.ContainsFunc(t[uuid], devices.IsTaint(taint.Key)) {
		t[uuid] = append(slices.Clip(t[uuid]), taint)
	}
}

// addHeld closes what another driver has or, without one, pods without a claim.
func (t taints) addHeld(uuid, driver string) {
	if driver != "" {
		t.add(uuid, closing(v1alpha1.TaintOtherDriver, driver))
	} else {
		t.add(uuid, closing(v1alpha1.TaintHeld, ""))
	}
}

func (t taints) clone() taints {
	out := taints{}
	maps.Copy(out, t)
	return out
}
