// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// reservedFor reserves the claim for pods.
func reservedFor(c *resourceapi.ResourceClaim, pods ...types.UID) *resourceapi.ResourceClaim {
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: string(pod), UID: pod})
	}
	return c
}

// isUsedBy checks which pod with processes uses the claim; none where it is empty.
func (n *node) isUsedBy(t *testing.T, claim string, want types.UID) {
	t.Helper()
	user, err := n.InUse(n.recordOf(t, claim))
	expect.NoError(t, err)
	expect.Equal(t, want, user, "in use by")
}

// The kubelet asks to unprepare what a pod had that was deleted by force while its
// containers stop.
func TestUnprepareWaitsForProcesses(t *testing.T) {
	n := newNode(t)
	n.takes(t, reservedFor(wholeGPUs("u0", 0), "p0"))
	n.running = map[types.UID]bool{"p0": true}
	expect.Error(t, n.Unprepare(t.Context(), "u0"), "processes still run of the pod with UID p0")
	n.refuses(t, reservedFor(wholeGPUs("u1", 0), "p1"), "promised twice")
	// The claim is allocated again, elsewhere.
	n.refuses(t, reservedFor(wholeGPUs("u0", 2), "p2"),
		"the claim was allocated again: processes still run of the pod with UID p0")
	expect.Equal(t, []types.UID{"u0", "u0", "u0"}, n.contended, "claims that somebody wants released")
	n.running = nil
	n.givesBack(t, "u0")
	n.takes(t, reservedFor(wholeGPUs("u1", 0), "p1"))
	// What is not known keeps no pod from ending, and a reboot ends all processes.
	n.unknown = errors.New("no control groups")
	n.givesBack(t, "u1")
	n.unknown, n.running = nil, map[types.UID]bool{"p3": true}
	n.takes(t, reservedFor(wholeGPUs("u3", 0), "p3"))
	n.options.BootID = "boot-2"
	n.givesBack(t, "u3")
}

// A claim can be there for years while pods come and go: its record names those that still matter.
func TestRecordOfAClaimWhosePodsComeAndGo(t *testing.T) {
	for name, tc := range map[string]struct {
		unknown error
		most    int
	}{"it is known who runs": {nil, 4}, "it is not": {errors.New("no control groups"), usersMost}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.unknown, n.running = tc.unknown, map[types.UID]bool{"first": true}
			n.prepared(t, reservedFor(wholeGPUs("u", 0), "first"))
			counted := &fullDisk{Store: n.options.Store, room: math.MaxInt}
			n.options.Store = counted
			came := tc.most + 50
			for i := range came {
				pod := types.UID(fmt.Sprint("p", i))
				// The one before has ended; the first was deleted by force and runs.
				n.running = map[types.UID]bool{"first": true, pod: true}
				n.users = map[string][]types.UID{"claim-u": {pod}}
				c := reservedFor(wholeGPUs("u", 0), pod)
				for range 2 {
					expect.NoError(t, n.EnterReserved(t.Context(), c))
				}
				if r := n.recordOf(t, "u"); len(r.Pods) > tc.most || !slices.Contains(r.Pods, pod) {
					t.Fatalf("after %d pods: %d in the record, at most %d are needed", i+1, len(r.Pods), tc.most)
				}
			}
			expect.Equal(t, came, counted.puts, "writes for the pods")
			if tc.unknown != nil {
				return
			}
			// Whoever was deleted by force and runs keeps the claim all the same.
			r := n.recordOf(t, "u")
			if !slices.Contains(r.Pods, "first") || len(r.PodNames) > 0 {
				t.Errorf("the record has pods %v, names %v", r.Pods, r.PodNames)
			}
			n.isUsedBy(t, "u", "first")
		})
	}
}
