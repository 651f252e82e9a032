// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// asksInTooManyWays has a pod wait for nine shares, each of which takes one of eight GPUs.
func (s *site) asksInTooManyWays() {
	s.Helper()
	eight := sliceOf(devices.Options{Mode: mode.Share}, slices.Repeat([]int64{23028}, 8)...)
	apitest.Update(s, s.client, eight)
	many := claim("22Gi")
	for i := range 8 {
		r := many.Spec.Devices.Requests[0].DeepCopy()
		r.Name = fmt.Sprint("gpu-", i)
		many.Spec.Devices.Requests = append(many.Spec.Devices.Requests, *r)
	}
	s.create(many, pod(refused))
}

// A pod whose nodes were not searched to the end is told so, not that others have its GPUs, and not that they are free.
func TestPodsAreToldThatTheirNodesWereNotSearchedToTheEnd(t *testing.T) {
	const told = warning + "whether a node has room for its GPUs is not known: 1 node that it can be on was not " +
		"searched to the end: the requests can be met in too many ways. What would help: fewer devices, requests and " +
		"alternatives in one pod, or a matchAttribute constraint that ties requests to one GPU"
	run(t, func(s *site) {
		s.asksInTooManyWays()
		time.Sleep(time.Minute)
		s.told("after a while", told)
		time.Sleep(waiting.RepeatAfter)
		s.told("again", told)
	})
}

// The same is said where there is no time to look at what is free.
func TestPodsAreToldWithoutALookThatTheirNodesWereNotSearchedToTheEnd(t *testing.T) {
	run(t, func(s *site) {
		s.slow.Store(int64(3 * time.Second))
		s.asksInTooManyWays()
		time.Sleep(time.Minute)
		s.told("after a while", warning+"whether a node has room for all requests of the pod at once was not searched to "+
			"the end: they can be met in too many ways")
	})
}
