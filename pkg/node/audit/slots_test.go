// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// One share can hold all processes that MPS serves on a GPU: the container with more than its part is named, when few
// are left, and nobody else.
func TestClientSlots(t *testing.T) {
	small, large := pod("small", "main=s"), pod("large", "main=l")
	limited := map[string][]claim.Grant{"s": {share("gpu", 0, 1, underMPS)}, "l": {share("big", 0, 12, underMPS)}}
	unlimited := map[string][]claim.Grant{"s": {share("gpu", 0, 1)}, "l": {share("big", 0, 12)}}
	for name, tc := range map[string]struct {
		claims       map[string][]claim.Grant
		small, large int
		slots        int
		want         string
	}{
		"one share has all":                {limited, 48, 0, 48, "small"},
		"one share has more than its part": {limited, 20, 20, 48, "small"},
		"it would, and most are free":      {limited, 20, 10, 48, ""},
		"many, by a share as large":        {limited, 3, 38, 48, ""},
		"both within their parts":          {limited, 3, 33, 48, ""},
		"without MPS":                      {unlimited, 48, 0, 48, ""},
		"not judged":                       {limited, 48, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := node{pods: []*corev1.Pod{small, large}, claims: tc.claims, rules: Rules{ClientSlots: tc.slots}}
			for range tc.small {
				n.on = append(n.on, process{mib: 1, owner: in(small, "main"), client: true})
			}
			for range tc.large {
				n.on = append(n.on, process{mib: 1, owner: in(large, "main"), client: true})
			}
			var got []Finding
			for _, f := range Judge(n.input()).Findings {
				if f.Kind == ClientSlots {
					got = append(got, f)
				}
			}
			switch {
			case tc.want == "" && len(got) > 0, tc.want != "" && len(got) != 1:
				t.Fatalf("findings %+v, want one of %q", got, tc.want)
			case tc.want == "":
				return
			}
			if f := got[0]; f.Pod.Name != tc.want || !f.MayEvict ||
				!strings.Contains(f.Message, "where MPS serves 48, and its share of 1 GiB has 3 of these") {
				t.Errorf("%+v", f)
			}
		})
	}
}
