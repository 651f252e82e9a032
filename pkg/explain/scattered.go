// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// scattered says on which GPU enough memory slices are free for a MIG instance, but not in a row where one can begin,
// or not its engines; of are the places that are taken, all are all devices.
func scattered(of, all []scheduling.Seen) []string {
	most := slices.MaxFunc(of, func(a, b scheduling.Seen) int { return cmp.Compare(a.FreeSlices, b.FreeSlices) })
	index, profile, size := placeOf(most)
	if most.FreeSlices == 0 || int64(most.FreeSlices) < size {
		return nil
	}
	lacks := fmt.Sprintf("not %d in a row where a %s can begin", size, profile)
	for _, s := range all {
		i, p, _ := placeOf(s)
		switch is := i == index && p == profile; {
		case is && s.Step == scheduling.Suits:
			return nil
		case is && len(s.ShortOf) > 0:
			lacks = fmt.Sprintf("not the %s that a %s takes", strings.Join(s.ShortOf, ", "), profile)
		}
	}
	return []string{fmt.Sprintf("GPU %d has %d memory slices free, but %s", index, most.FreeSlices, lacks)}
}

// placeOf is on which GPU a place for a MIG instance is, of which profile, and how many memory slices it takes.
func placeOf(s scheduling.Seen) (index int64, profile string, size int64) {
	of := s.Device.Attributes
	return ptr.Deref(of[v1alpha1.AttrIndex].IntValue, -1), ptr.Deref(of[v1alpha1.AttrProfile].StringValue, ""),
		ptr.Deref(of[v1alpha1.AttrPlacementSize].IntValue, 0)
}
