// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Enough slices of a GPU can be free for a MIG instance that fits nowhere.
func TestScatteredSlices(t *testing.T) {
	place := func(gpu, size int64, free int) scheduling.Seen {
		return scheduling.Seen{FreeSlices: free, Device: &resourceapi.Device{
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{v1alpha1.AttrIndex: {IntValue: &gpu},
				v1alpha1.AttrPlacementSize: {IntValue: &size}, v1alpha1.AttrProfile: {StringValue: ptr.To("3g.40gb")}}}}
	}
	for _, test := range []struct {
		want string
		of   []scheduling.Seen
	}{
		{"GPU 2 has 6 memory slices free, but not 4 in a row where a 3g.40gb can begin",
			[]scheduling.Seen{place(1, 4, 3), place(2, 4, 6), place(3, 4, 0)}},
		{"", []scheduling.Seen{place(1, 4, 3), place(2, 4, 0)}},
		{"", []scheduling.Seen{{Device: &resourceapi.Device{}}}},
	} {
		got := scattered(test.of, test.of)
		if len(got) > 1 || test.want == "" && len(got) > 0 || test.want != "" && (len(got) == 0 || got[0] != test.want) {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
