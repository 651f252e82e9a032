// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
)

// desired is what a node asks for.
type desired struct {
	// mode is empty where that is something that cannot be served.
	mode mode.Mode
	// asked is what the labels came to, if there is a mode.
	asked     mode.Asked
	placement mode.Placement
	// servings are the modes that each GPU is offered in.
	served []servedMode
	// notServed says why mode is empty, ignored which labels were not understood
	// and could be done without.
	notServed error
	ignored   []error
	// again says that the reason for the refusal can go away unnoticed.
	again bool
}

// offer is what the devices are to be published as.
func (w *desired) offer() mode.Offer {
	if w.mode == "" {
		return mode.Offer{}
	}
	o := mode.Offer{Mode: w.mode, Isolation: map[mode.Mode]string{}}
	for _, s := range w.served {
		o.Isolation[s.mode] = s.backend.Name()
	}
	return o
}

// offerNothing makes it that nothing is offered, for the reason given.
func (w *desired) offerNothing(reason error) {
	w.mode, w.served, w.notServed = "", nil, reason
}

func switchingTaints(closed bool) []resourceapi.DeviceTaint {
	if !closed {
		return nil
	}
	return []resourceapi.DeviceTaint{{Key: v1alpha1.TaintSwitching, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
}

// unhealthyTaints are the taints of GPUs that are unhealthy, by UUID.
func unhealthyTaints(
	unhealthy map[string]health.Unhealthy, effect resourceapi.DeviceTaintEffect,
) map[string][]resourceapi.DeviceTaint {
	taints := map[string][]resourceapi.DeviceTaint{}
	for uuid, u := range unhealthy {
		taints[uuid] = []resourceapi.DeviceTaint{{Key: v1alpha1.TaintUnhealthy, Value: u.Reason,
			Effect: cmp.Or(effect, resourceapi.DeviceTaintEffectNoSchedule)}}
	}
	return taints
}

// describe says what an offer is, with what tells it from another one.
func describe(o, from mode.Offer) string {
	switch {
	case o.Mode == "":
		return "offering none"
	case o.Mode != from.Mode || o.Equal(from):
		return "mode " + string(o.Mode)
	}
	var by []string
	for _, m := range o.Mode.ServedModes() {
		if o.Isolation[m] != from.Isolation[m] {
			by = append(by, fmt.Sprintf("%s by %s", m, o.Isolation[m]))
		}
	}
	return fmt.Sprintf("mode %s with isolation of %s", o.Mode, strings.Join(by, ", "))
}
