// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
)

// reservedFor reserves the claim for pods.
func reservedFor(c *resourceapi.ResourceClaim, pods ...types.UID) *resourceapi.ResourceClaim {
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: string(pod), UID: pod})
	}
	return c
}

// The kubelet asks to unprepare what a pod had that was deleted by force while its
// containers stop.
func TestUnprepareWaitsForProcesses(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	if _, err := n.Prepare(ctx, reservedFor(wholeGPUs("u0", 0), "p0")); err != nil {
		t.Fatal(err)
	}
	n.running = map[types.UID]bool{"p0": true}
	if err := n.Unprepare(ctx, "u0"); err == nil ||
		!strings.Contains(err.Error(), "processes still run of the pod with UID p0") {
		t.Errorf("unprepared while a process runs: %v", err)
	}
	if _, err := n.Prepare(ctx, reservedFor(wholeGPUs("u1", 0), "p1")); err == nil ||
		!strings.Contains(err.Error(), "promised twice") {
		t.Errorf("another's claim for the GPU: %v", err)
	}
	// The claim is allocated anew, elsewhere.
	if _, err := n.Prepare(ctx, reservedFor(wholeGPUs("u0", 2), "p2")); err == nil ||
		!strings.Contains(err.Error(), "the claim was allocated anew: processes still run of the pod with UID p0") {
		t.Errorf("the claim with another GPU: %v", err)
	}
	if diff := cmp.Diff([]types.UID{"u0", "u0", "u0"}, n.contended); diff != "" {
		t.Errorf("claims that somebody wants released (-want +got):\n%s", diff)
	}
	n.running = nil
	if err := n.Unprepare(ctx, "u0"); err != nil {
		t.Error(err)
	}
	if _, err := n.Prepare(ctx, reservedFor(wholeGPUs("u1", 0), "p1")); err != nil {
		t.Error(err)
	}
	// What is not known keeps no pod from ending, and a reboot ends all processes.
	n.unknown = errors.New("no control groups")
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Error(err)
	}
	n.unknown, n.running = nil, map[types.UID]bool{"p3": true}
	if _, err := n.Prepare(ctx, reservedFor(wholeGPUs("u3", 0), "p3")); err != nil {
		t.Fatal(err)
	}
	n.options.BootID = "boot-2"
	if err := n.Unprepare(ctx, "u3"); err != nil {
		t.Error(err)
	}
}
