// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"testing"

	"k8s.io/client-go/tools/record"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// During an update the process before makes an instance after this one has read the GPUs.
func TestInstanceThatWasMadeSinceTheGPUsWereRead(t *testing.T) {
	profiles := []gpu.Profile{{Kind: gpu.Instance{ProfileID: 19, Profile: "1g.10gb", Size: 1}, Starts: []int{0, 1},
		Count: 2}}
	machine := func(instances ...gpu.Instance) *gpu.Machine {
		return &gpu.Machine{Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 2, UUID: "GPU-2"}, Instances: instances,
			Profiles: profiles}}}
	}
	mine := instanceAt(0, "MIG-a")
	const there, gone = "gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0", "gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0!"
	for name, test := range map[string]struct {
		next func(b *bench)
		want string
	}{
		"read again, and there":     {func(b *bench) { b.SetMachine(machine(mine)) }, there},
		"read again, and otherwise": {func(b *bench) { b.SetMachine(machine(instanceAt(1, "MIG-b"))) }, gone},
		"read again, and as it was": {func(b *bench) { b.clock.Step(rereadLimit) }, gone},
		"there, and destroyed by somebody": {func(b *bench) {
			b.SetMachine(machine(mine))
			b.reconciled(t, true, there)
			b.SetMachine(machine())
		}, gone},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			rescans := make(chan struct{}, 10)
			b.Rescan = rescans
			b.SetMachine(machine())
			b.mode("mig")
			b.reconciled(t, true, there)
			r := holding(mine)
			r.Phase, r.Grants[0].GPU.MIG.Made = state.Prepared, true
			b.records = []state.Record{r}
			for range 2 {
				b.reconciled(t, false, there)
			}
			if told := b.events.current[v1alpha1.ReasonInstanceGone]; told != "" || len(rescans) != 1 {
				t.Errorf("told %q, the GPUs are read again %d times, want once", told, len(rescans))
			}
			test.next(b)
			b.reconciled(t, true, test.want)
			if told := b.events.current[v1alpha1.ReasonInstanceGone]; (told != "") != (test.want == gone) || len(rescans) != 1 {
				t.Errorf("told %q, the GPUs are read again %d times, want once", told, len(rescans))
			}
		})
	}
}

// Of an instance whose claim has ended nothing stays known, also on a node without MIG: the next claim that has it is
// waited for, and told, as the first was.
func TestInstanceOfAClaimThatHasEndedIsForgotten(t *testing.T) {
	b := newBench(t)
	recorder := record.NewFakeRecorder(10)
	rescans := make(chan struct{}, 10)
	b.ClaimEvents, b.Rescan = report.New(recorder, b.clock), rescans
	b.mode("mig")
	r := holding(instanceAt(0, "MIG-a"))
	r.Phase, r.Grants[0].GPU.MIG.Made = state.Prepared, true
	for before := range 2 {
		b.records = []state.Record{r}
		b.reconciled(t, false, "gpu-0 gpu-1")
		b.clock.Step(rereadLimit)
		b.reconciled(t, true, "gpu-0 gpu-1")
		if len(rescans) != before+1 || len(recorder.Events) != before+1 {
			t.Errorf("the GPUs are read again %d times, the claim is told %d times, want %d", len(rescans), len(recorder.Events),
				before+1)
		}
		b.records = nil
		b.reconciled(t, true, "gpu-0 gpu-1")
	}
}
