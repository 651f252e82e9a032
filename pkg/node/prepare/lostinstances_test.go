// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Where the records are lost, the CDI spec of a claim that ends tells which instances were made for it: they go as soon
// as no program has them.
func TestLostRecordsOfInstancesWhoseClaimEnds(t *testing.T) {
	for name, end := range map[string]func(n *node) error{
		"unprepared": func(n *node) error { return n.Unprepare(t.Context(), "made") },
		"gone": func(n *node) error {
			n.api.claims = nil
			return n.repairer().Repair(t.Context())
		},
		"allocated again": func(n *node) error {
			n.api.claims = []*resourceapi.ResourceClaim{instanceClaim("made", fourOf)}
			return n.repairer().Repair(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, d := cuttingNode(t, at(5, "MIG-foreign"))
			n.prepared(t, instanceClaim("made", oneSlice, elsewhere))
			n.loseState(t)
			n.cuts(d)
			// A GPU that cannot be read says nothing of its instances.
			n.has(&gpu.Machine{GPUs: machine().GPUs, Faults: []gpu.Fault{{Index: 4, Reason: gpu.FaultUnreadable}}})
			expect.Error(t, end(n), "cannot be read")
			if len(n.specs(t)) == 0 {
				t.Error("nothing tells of the instance any more")
			}
			n.has(d.machine())
			d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
			expect.Error(t, end(n), "it stays held until that program ends")
			d.fails = nil
			expect.NoError(t, end(n))
			n.leaves(t, d, "MIG-foreign")
		})
	}
}

// Another process may make an instance after the GPUs were read: they are read again, and then the claim is recovered.
// An instance that is gone is told by who publishes the devices.
func TestInstanceThatWasMadeSinceTheGPUsWereRead(t *testing.T) {
	n, d := cuttingNode(t)
	before := d.machine()
	n.prepared(t, instanceClaim("made", oneSlice))
	specs := n.specs(t)
	n.restart(t)
	n.has(before)
	rescans := 0
	n.options.Rescan = func() { rescans++ }
	if err := n.Recover(t.Context()); err != nil || rescans != 1 {
		t.Errorf("%v; the GPUs are read again %d times, want once", err, rescans)
	}
	expect.NoError(t, n.options.Specs.Remove(cdi.SpecName("made")))
	expect.Error(t, n.repairer().Repair(t.Context()), "the GPUs do not show the MIG instance that was made for it")
	n.cuts(d)
	expect.NoError(t, n.Recover(t.Context()))
	expect.Equal(t, specs, n.specs(t), "CDI specs")
}

// Where the records are lost, it is still known which instances were made for claims, and they go with them.
func TestLostRecordsOfInstances(t *testing.T) {
	n, d := cuttingNode(t, at(5, "MIG-foreign"))
	made, found := instanceClaim("made", oneSlice, elsewhere), instanceClaim("found", "gpu-4-mig-1g-10gb-5")
	want := n.prepared(t, made, found)
	n.loseState(t)
	n.cuts(d)
	expect.NoError(t, n.repairer().Repair(t.Context()))
	expect.Equal(t, want, n.records(t), "records")
	for _, c := range []*resourceapi.ResourceClaim{made, found} {
		expect.NoError(t, n.Unprepare(t.Context(), c.UID))
	}
	n.leaves(t, d, "MIG-foreign")
	// An instance that is gone is made again when the kubelet asks for the claim.
	n.cuts(d)
	again := instanceClaim("again", oneSlice)
	n.prepared(t, again)
	d.instances = d.instances[:1]
	n.loseState(t)
	n.cuts(d)
	expect.NoError(t, n.repairer().Repair(t.Context()))
	if _, err := n.Prepare(t.Context(), again); err != nil || len(d.instances) != 2 {
		t.Errorf("%v, instances %+v", err, d.instances)
	}
}
