// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// Suitable are those of devices, by their indices, that a request would be given if nobody had any.
func (e *Engine) Suitable(ctx context.Context, classes []*resourceapi.DeviceClass, of []resourceapi.Device,
	r Request) []int {
	class, err := stockallocator.Classes(classes).Get(r.Class)
	if err != nil {
		return nil
	}
	l := &looker{compiled: e.compiled}
	var found []int
	for i := range of {
		if l.suits(ctx, &of[i], class, r).Step == Suits {
			found = append(found, i)
		}
	}
	return found
}
