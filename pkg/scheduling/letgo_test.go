// SPDX-License-Identifier: Apache-2.0

package scheduling_test

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// offering is a node whose GPUs offer some of 20 shares of 22Gi; spread says that it may hold some back.
func offering(node string, shares int64, spread bool) *resourceapi.ResourceSlice {
	slice := pool(node)
	for i := range slice.Spec.Devices {
		d := &slice.Spec.Devices[i]
		d.AllowMultipleAllocations = ptr.To(true)
		d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			v1alpha1.CapMemory: {Value: resource.MustParse("22Gi")},
			v1alpha1.CapSlots:  {Value: *resource.NewQuantity(shares, resource.DecimalSI)}}
		if spread {
			d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				v1alpha1.AttrShareableGiB: {IntValue: ptr.To(int64(22))}, v1alpha1.AttrMaxShares: {IntValue: ptr.To(int64(20))}}
		}
	}
	return slice
}

// Where nothing is held back there is nothing to look at again: whoever asks does nothing then.
func TestLetGo(t *testing.T) {
	shares := func(s scheduling.Snapshot, n int) int64 {
		slots := s.Slices[n].Spec.Devices[1].Capacity[v1alpha1.CapSlots]
		return slots.Value.Value()
	}
	for name, test := range map[string]struct {
		offered    int64
		spread     bool
		from       string
		afterwards int64
	}{
		"some are held back":     {1, true, "map[n1:true]", 20},
		"all are offered":        {20, true, "map[]", 20},
		"a node does not spread": {1, false, "map[]", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := scheduling.Snapshot{Slices: []*resourceapi.ResourceSlice{offering("n1", test.offered, test.spread),
				offering("n2", 5, false)}}
			letGo, from := s.LetGo()
			if got := fmt.Sprint(from); got != test.from || shares(letGo, 0) != test.afterwards || shares(letGo, 1) != 5 {
				t.Errorf("from %s, %d and %d shares", got, shares(letGo, 0), shares(letGo, 1))
			}
			expect.Equal(t, test.offered, shares(s, 0), "shares that what was given offers")
		})
	}
}
