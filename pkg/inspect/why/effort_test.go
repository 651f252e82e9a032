// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

// manyWays is a claim of more requests than n2 can serve at once, each of which it can serve in two ways.
func manyWays(name string) *resourceapi.ResourceClaim {
	c := asking("team-a", name, "share.gpu.aliyun.com", "2Gi")
	for i := range 22 {
		r := c.Spec.Devices.Requests[0].DeepCopy()
		r.Name = fmt.Sprint("gpu-", i)
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, *r)
	}
	return c
}

// A search that was cut off says neither that the pod fits nor that no node has room.
func TestASearchThatIsCutOffIsNoAnswer(t *testing.T) {
	testneeds.Time(t)
	const unknown = "whether a node has room for its GPUs is not known: 1 node that it can be on was not searched to " +
		"the end: the requests can be met in too many ways.\n"
	loop := asking("team-a", "loop", "share.gpu.aliyun.com", "2Gi")
	loop.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `lists.range(900).all(x, lists.range(100).all(y, x + y >= 0))`}}}
	for name, test := range map[string]struct {
		of   func(in *why.Input)
		want []string
		// known says that the answer is known all the same.
		known bool
	}{
		"a pod": {func(in *why.Input) { waiting(in, manyWays("c")) }, []string{"waits: " + unknown,
			"not searched to the end: the requests", "- fewer devices, requests and alternatives in one pod"}, false},
		"a claim without a pod": {func(in *why.Input) { in.Claim = manyWays("c") }, []string{"As things are, whether a " +
			"node has room for its GPUs is not known: 1 node "}, false},
		"selectors": {func(in *why.Input) { waiting(in, loop) }, []string{"the selectors take too long to evaluate",
			"- selectors without loops"}, false},
		"one request that can never be met": {func(in *why.Input) {
			c := manyWays("c")
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests,
				asking("team-a", "d", "share.gpu.aliyun.com", "90Gi").Spec.Devices.Requests[0])
			c.Spec.Devices.Requests[23].Name = "large"
			waiting(in, c)
		}, []string{"can never be scheduled", "90Gi"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			in := stage(t)
			test.of(&in)
			answer, text := answered(t, in)
			checkSays(t, text, test.want, []string{"no node has room", "it has room"})
			data, err := json.Marshal(answer)
			expect.NoError(t, err)
			if answer.Unsearched == test.known || (answer.Fits != nil) != test.known ||
				strings.Contains(string(data), `"unsearched":true`) == test.known {
				t.Errorf("fits %v: %s", answer.Fits, data)
			}
		})
	}
}

// What of a gang was cut off leaves open whether the gang fits.
func TestAGangIsOpenWhereASearchIsCutOff(t *testing.T) {
	testneeds.Time(t)
	in := stage(t)
	gangOf(&in, 2, 0, 2, "2Gi")
	in.Group.Members[1].Claims = []*resourceapi.ResourceClaim{manyWays("c")}
	answer, text := answered(t, in)
	if g := answer.Gang; g.Fits != nil || g.NotLookedAt != 1 || len(g.NoRoom) > 0 {
		t.Errorf("the gang is %+v", g)
	}
	checkSays(t, text, []string{"whether the gang fits is open, as the other 1 were not looked at to the end"}, nil)
}
