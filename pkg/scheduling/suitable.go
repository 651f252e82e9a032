// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// Foreign reports, for each of devices, whether the scheduler gives it to none of the claims' requests, nor to an
// alternative of one, whoever has it. One that a selector cannot be evaluated for is not foreign: the scheduler gives
// up there.
func (e *Engine) Foreign(ctx context.Context, classes []*resourceapi.DeviceClass, of []resourceapi.Device,
	claims []*resourceapi.ResourceClaim) []bool {
	l, known := &looker{compiled: e.compiled}, stockallocator.Classes(classes)
	foreign := slices.Repeat([]bool{true}, len(of))
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			for _, r := range Alternatives(&claim.Spec.Devices.Requests[i]) {
				class, err := known.Get(r.Class)
				if err != nil {
					return make([]bool, len(of))
				}
				for j := range of {
					if foreign[j] {
						seen := l.suits(ctx, &of[j], class, r)
						foreign[j] = !seen.unclear && seen.Step <= TooSmall
					}
				}
			}
		}
	}
	return foreign
}

// Suitable are those of devices that a request would be given if nobody had any.
func (e *Engine) Suitable(ctx context.Context, classes []*resourceapi.DeviceClass, of []resourceapi.Device,
	r Request) []resourceapi.Device {
	class, err := stockallocator.Classes(classes).Get(r.Class)
	if err != nil {
		return nil
	}
	l := &looker{compiled: e.compiled}
	var found []resourceapi.Device
	for i := range of {
		if l.suits(ctx, &of[i], class, r).Step == Suits {
			found = append(found, of[i])
		}
	}
	return found
}
