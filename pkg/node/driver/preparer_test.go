// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// The pods of a claim are told what switches its limits off, and what would and may not.
func TestPodsAreToldOfLimits(t *testing.T) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "a", UID: "a1"}, {Resource: "pods", Name: "b", UID: "b1"},
	}
	for name, tc := range map[string]struct {
		off, kept []string
		want      string
	}{
		"neither": {nil, nil, ""},
		"off": {[]string{"r0"}, nil,
			`Normal GPUIsolationDisabled Claim c: the limits of requests ["r0"] are switched off`},
		"kept": {nil, []string{"r1"},
			`Warning GPUIsolationKept Claim c: the limits of requests ["r1"] hold, although CGPU_DISABLE or disableIsolation`},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			limits{events, claim.LimitsOffByClasses}.tell(c, prepare.Result{LimitsOff: tc.off, LimitsKept: tc.kept})
			close(events.Events)
			count := 0
			for event := range events.Events {
				count++
				if !strings.HasPrefix(event, tc.want) {
					t.Errorf("told %q, want %q", event, tc.want)
				}
			}
			expect.Equal(t, map[bool]int{true: 0, false: 2}[tc.want == ""], count,
				"Events, one for each of the pods that there are to tell")
		})
	}
}
