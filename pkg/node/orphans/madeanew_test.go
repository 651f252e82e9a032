// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// madeAnew has claim u1 created again, under its name and reserved for pods.
func (s *sweeps) madeAnew(pods ...types.UID) *resourceapi.ResourceClaim {
	c := wholeGPU("u1", 2, pods...)
	c.UID = "new"
	s.api.Claims = []*resourceapi.ResourceClaim{c}
	return c
}

// The pods of a claim that was created again under the same name use nothing of the one before.
func TestSweepOfAClaimThatWasMadeAnew(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u1", 1, "p1"))
	c := s.madeAnew("p2")
	s.users = map[string][]types.UID{"claim-u1": {"p1", "p2", "joined"}}
	s.running["joined"] = true
	s.after(t, 0, uids{"u1"}, nil) // p2 waits still
	s.takes(t, c)
	s.running["p2"] = true
	s.after(t, sweepGrace, uids{"new", "u1"}, uids{"u1"})
	expect.Equal(t, "joined", s.told[0].User, "the user is")
	// Nor does who uses the one before hold the new one.
	s.running["p2"], s.api.Claims = false, nil
	s.after(t, 0, uids{"new", "u1"}, uids{"u1"})
	s.after(t, sweepGrace, uids{"u1"}, uids{"u1"})
	s.running["joined"] = false
	s.after(t, 0, nil, nil)
}

// Which of two claims of a name a pod uses is known by their records: it has processes only when its claim is prepared.
// The clocks of node and API server tell nothing, and what a claim is reserved for little: kube-controller-manager
// reserves it by name. Claim u1 is created again while p2 has processes.
func TestSweepKnowsAPodOfAClaimThatWasMadeAnew(t *testing.T) {
	for name, tc := range map[string]struct {
		// recorded are the pods of u1, reserved and joined those of the new claim before and after it was prepared, if it
		// was.
		recorded, reserved uids
		prepared           bool
		joined             uids
		held               bool
	}{
		"of the new one":                              {uids{"p1"}, uids{"p2"}, true, nil, false},
		"joined the new one later":                    {uids{"p1"}, nil, true, uids{"p2"}, false},
		"of the new one, and gone for the API server": {uids{"p1"}, uids{"p2"}, true, uids{"p3"}, false},
		"of the one before":                           {uids{"p1", "p2"}, uids{"p2"}, true, nil, true},
		"of the one before, and the new one waits":    {uids{"p1", "p2"}, uids{"p2"}, false, nil, true},
		"joined the one before":                       {uids{"p1"}, uids{"p2"}, false, nil, true},
		"joined the one before, unreserved":           {uids{"p1"}, nil, false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSweeps(t)
			s.takes(t, wholeGPU("u1", 1, tc.recorded...))
			c, after := s.madeAnew(tc.reserved...), uids(nil)
			if tc.prepared {
				after = uids{"new"}
				s.takes(t, c)
			}
			if tc.joined != nil {
				s.madeAnew(tc.joined...)
			}
			s.users, s.running["p2"] = map[string][]types.UID{"claim-u1": {"p2"}}, true
			s.after(t, 0, append(after, "u1"), nil)
			if tc.held {
				s.after(t, sweepGrace, append(after, "u1"), uids{"u1"})
				s.running["p2"] = false
			}
			s.after(t, sweepGrace, after, nil)
		})
	}
}

// A pod that joined the claim before is known to have it also when the one that was created again is prepared, and
// when it is gone for the API server and the plugin was restarted.
func TestSweepRemembersAPodOfTheClaimBefore(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u1", 1, "p1"))
	c := s.madeAnew("p2", "p3")
	s.users, s.running["p2"] = map[string][]types.UID{"claim-u1": {"p2"}}, true
	s.after(t, 0, uids{"u1"}, nil)
	s.takes(t, c)
	s.after(t, sweepGrace, uids{"new", "u1"}, uids{"u1"})
	s.users = nil
	s.start(t, "boot-1")
	s.after(t, sweepGrace, uids{"new", "u1"}, uids{"u1"})
	s.running["p2"] = false
	s.after(t, 0, uids{"new"}, nil)
}
