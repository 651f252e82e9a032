// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const conflictOnGPU0 = "gpu-0! gpu-0-share! gpu-0-cgpu! gpu-0-core-mem! gpu-0-mps! gpu-1 gpu-1-share gpu-1-cgpu " +
	"gpu-1-core-mem gpu-1-mps"

func allocatedClaim(uid types.UID, device string, admin bool) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: string(uid), UID: uid},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "r", Driver: v1alpha1.DriverName, Pool: "n1/gpu", Device: device, AdminAccess: ptr.To(admin)}}}}}}
}

// share has a claim of this name share GPU 0.
func (b *bench) share(name string) {
	r := recordOf(name, shareOf(0, 4))
	r.Phase, r.Grants[0].Request, r.Grants[0].Pool = state.Prepared, "r", "n1/gpu"
	b.records = append(b.records, r)
}

// A GPU that two claims were allocated is closed, and its counter is as high as both consume, for as long as the
// kubelet asks for the claim that is refused.
func TestRefusedClaimClosesItsGPU(t *testing.T) {
	for name, end := range map[string]func(*bench){
		"it is unprepared":       func(b *bench) { b.NotRefused("second") },
		"nobody asks any longer": func(b *bench) { b.clock.Step(refusedFor + time.Second) },
		"it gets another GPU":    func(b *bench) { b.Refused(allocatedClaim("second", "gpu-1", false)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t).in(t, "dynamic", everyMode)
			b.share("first")
			b.Refused(allocatedClaim("second", "gpu-0", false))
			b.reconciled(t, false, conflictOnGPU0)
			if counters := b.counters(); counters["gpu-0"] != 2 || counters["gpu-1"] != 1 {
				t.Errorf("counters %v", counters)
			}
			// Asked again and again, it is told once more and changes nothing.
			b.clock.Step(refusedFor - time.Second)
			b.Refused(allocatedClaim("second", "gpu-0", false))
			b.clock.Step(refusedFor - time.Second)
			b.reconciled(t, false, conflictOnGPU0)
			end(b)
			b.reconciled(t, name != "it gets another GPU", everyMode)
			if counters := b.counters(); counters["gpu-0"] != 1 {
				t.Errorf("counters %v", counters)
			}
		})
	}
}

// A new process publishes no counter lower than the one before did: it knows of no claim that was refused until the
// kubelet asks again.
func TestConflictOutlivesARestart(t *testing.T) {
	for name, asks := range map[string]bool{"the kubelet asks again": true, "nobody asks any longer": false} {
		t.Run(name, func(t *testing.T) {
			b := supervised(t).in(t, "dynamic", everyMode)
			b.share("first")
			b.Refused(allocatedClaim("second", "gpu-0", false))
			b.reconciled(t, false, conflictOnGPU0)
			b.restartIn("dynamic")
			b.reconciled(t, false, conflictOnGPU0)
			if counters := b.counters(); counters["gpu-0"] < 2 || counters["gpu-1"] != 1 {
				t.Errorf("counters %v", counters)
			}
			want := everyMode
			if asks {
				b.Refused(allocatedClaim("second", "gpu-0", false))
				want = conflictOnGPU0
			}
			b.clock.Step(restoredFor + time.Second)
			b.reconciled(t, !asks, want)
			if counters := b.counters(); asks && counters["gpu-0"] != 2 || !asks && counters["gpu-0"] != 1 {
				t.Errorf("counters %v", counters)
			}
		})
	}
}

// The scheduler counts neither what is gone nor what administrators look at.
func TestRefusedClaimsThatCloseNothing(t *testing.T) {
	b := supervised(t).in(t, "dynamic", everyMode)
	b.share("first")
	b.Refused(allocatedClaim("monitor", "gpu-0", true))
	b.reconciled(t, true, everyMode)
	b.Refused(allocatedClaim("alone", "gpu-1", false))
	b.reconciled(t, false, everyMode)
	b.Refused(allocatedClaim("alone", "gpu-0", false))
	b.update(func() { b.orphans = map[types.UID]string{"first": "its pods run"} })
	b.reconciled(t, false, conflictOnGPU0) // what orphans hold is
	if counters := b.counters(); counters["gpu-0"] != 1 {
		t.Errorf("counters %v: an orphan counts", counters)
	}
}

// counters are the GPUs' as published last.
func (b *bench) counters() map[string]int64 {
	counters := map[string]int64{}
	for _, slice := range b.published[len(b.published)-1].Pools["n1/gpu"].Slices {
		for _, set := range slice.SharedCounters {
			for name, c := range set.Counters {
				counters[name] = c.Value.Value()
			}
		}
	}
	return counters
}
