// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
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
			n, d := newNode(t), &dynamicGPU{instances: []gpu.Instance{at(5, "MIG-foreign")}}
			n.cuts(d)
			n.prepared(t, t.Context(), instanceClaim("made", oneSlice, elsewhere))
			n.loseState(t)
			n.cuts(d)
			// A GPU that cannot be read says nothing of its instances.
			n.has(&gpu.Machine{GPUs: machine().GPUs, Faults: []gpu.Fault{{Index: 4, Reason: gpu.FaultUnreadable}}})
			fails(t, end(n), "cannot be read")
			if len(n.specs(t)) == 0 {
				t.Error("nothing tells of the instance any more")
			}
			n.has(d.machine())
			d.fails = map[string]error{"destroy": fmt.Errorf("destroying: %w", gpu.ErrInstanceInUse)}
			fails(t, end(n), "it stays held until that program ends")
			d.fails = nil
			if err := end(n); err != nil {
				t.Error(err)
			}
			if len(d.instances) != 1 || d.instances[0].UUID != "MIG-foreign" || len(n.files(t)) > 0 {
				t.Errorf("left: %+v %v", d.instances, n.files(t))
			}
		})
	}
}

// Another process may make an instance after the GPUs were read: they are read again, and then the claim is recovered.
// An instance that is gone is told by who publishes the devices.
func TestInstanceThatWasMadeSinceTheGPUsWereRead(t *testing.T) {
	n, d := newNode(t), &dynamicGPU{}
	n.cuts(d)
	before := d.machine()
	n.prepared(t, t.Context(), instanceClaim("made", oneSlice))
	specs := n.specs(t)
	n.restart(t)
	n.has(before)
	rescans := 0
	n.options.Rescan = func() { rescans++ }
	if err := n.Recover(t.Context()); err != nil || rescans != 1 {
		t.Errorf("%v; the GPUs are read again %d times, want once", err, rescans)
	}
	if err := n.options.Specs.Remove(cdi.SpecName("made")); err != nil {
		t.Fatal(err)
	}
	fails(t, n.repairer().Repair(t.Context()), "the GPUs do not show the MIG instance that was made for it")
	n.cuts(d)
	if err := n.Recover(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(specs, n.specs(t)); diff != "" {
		t.Errorf("CDI specs (-before +after):\n%s", diff)
	}
}

// Where the records are lost, it is still known which instances were made for claims, and they go with them.
func TestLostRecordsOfInstances(t *testing.T) {
	n, d := newNode(t), &dynamicGPU{instances: []gpu.Instance{at(5, "MIG-foreign")}}
	n.cuts(d)
	made, found := instanceClaim("made", oneSlice, elsewhere), instanceClaim("found", "gpu-4-mig-1g-10gb-5")
	want := n.prepared(t, t.Context(), made, found)
	n.loseState(t)
	n.cuts(d)
	if err := n.repairer().Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, n.records(t, t.Context())); diff != "" {
		t.Errorf("records (-before +after):\n%s", diff)
	}
	for _, c := range []*resourceapi.ResourceClaim{made, found} {
		if err := n.Unprepare(t.Context(), c.UID); err != nil {
			t.Error(err)
		}
	}
	if len(d.instances) != 1 || d.instances[0].UUID != "MIG-foreign" || len(n.files(t)) > 0 {
		t.Errorf("left: %+v %v", d.instances, n.files(t))
	}
	// An instance that is gone is made again when the kubelet asks for the claim.
	n.cuts(d)
	again := instanceClaim("again", oneSlice)
	n.prepared(t, t.Context(), again)
	d.instances = d.instances[:1]
	n.loseState(t)
	n.cuts(d)
	if err := n.repairer().Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(t.Context(), again); err != nil || len(d.instances) != 2 {
		t.Errorf("%v, instances %+v", err, d.instances)
	}
}
