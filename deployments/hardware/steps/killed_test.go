// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

func TestMoments(t *testing.T) {
	half := gpu.Instance{}
	whole := gpu.Instance{UUID: "MIG-a"}
	for _, tt := range []struct {
		name      string
		instances []gpu.Instance
		want      []moment
	}{
		{"nothing is there", nil, []moment{noCI, nothing}},
		{"a GPU instance without a compute instance", []gpu.Instance{half}, []moment{someGI, noCI}},
		{"both", []gpu.Instance{whole}, []moment{someGI, someCI}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got, want []string
			for _, m := range []moment{someGI, someCI, noCI, nothing} {
				if m.is(tt.instances) {
					got = append(got, m.what)
				}
			}
			for _, m := range tt.want {
				want = append(want, m.what)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("moments (-want +got):\n%s", diff)
			}
		})
	}
}
