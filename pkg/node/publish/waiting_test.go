// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// told has the node say who waits.
func (b *bench) told(t *testing.T, text string) {
	t.Helper()
	b.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        "n1",
		Labels:      map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "spread"},
		Annotations: map[string]string{v1alpha1.AnnotationWaiting: text},
	}})
}

// offers checks how many GiB and shares claims can have of each GPU together, and whether the
// publisher has to look again.
func (b *bench) offers(t *testing.T, when string, again bool, want map[string]gpu.Amount) {
	t.Helper()
	settled, err := b.reconcile(t.Context())
	expect.NoError(t, err)
	if settled == again {
		t.Errorf("%s: looks again: %t, want %t", when, !settled, again)
	}
	got := map[string]gpu.Amount{}
	for _, d := range b.published[len(b.published)-1].Pools["n1/gpu"].Slices[0].Devices {
		memory, slots := d.Capacity[v1alpha1.CapMemory].Value, d.Capacity[v1alpha1.CapSlots].Value
		got[d.Name] = gpu.Amount{Units: memory.Value() >> 30, Shares: slots.Value()}
		units, shares := d.Attributes[v1alpha1.AttrShareableGiB].IntValue, d.Attributes[v1alpha1.AttrMaxShares].IntValue
		if units == nil || *units != 15 || shares == nil || *shares != 20 {
			t.Errorf("%s: device %s has attributes %v", when, d.Name, d.Attributes)
		}
	}
	expect.Equal(t, want, got, "%s: offered", when)
}

func TestWhatIsHeldBackIsOfferedToWhoWaits(t *testing.T) {
	of := func(units, shares int64) gpu.Amount { return gpu.Amount{Units: units, Shares: shares} }
	both := func(first, second gpu.Amount) map[string]gpu.Amount {
		return map[string]gpu.Amount{"gpu-0-share": first, "gpu-1-share": second}
	}
	even := both(of(4, 1), of(15, 1))
	b := newBench(t)
	waiting := func(gib, shares int64, apart time.Duration) string {
		text, err := placement.Waiting{Claim: "waits", At: b.clock.Now().Add(apart), GiB: gib, Shares: shares}.Encode()
		expect.NoError(t, err)
		return text
	}
	grant := func(uid types.UID, index int, units int64) {
		b.records = append(b.records, state.Record{UID: uid, Grants: []claim.Grant{{
			Mode: mode.Share, GPU: claim.GPU{Index: index, UUID: fmt.Sprint("GPU-", index), MemoryMiB: 16130}, Units: units,
		}}})
	}
	b.told(t, waiting(3, 1, 0))
	grant("first", 0, 4)
	b.offers(t, "told before the plugin started", false, even)
	b.told(t, "")
	b.offers(t, "one GPU ahead", false, even)
	b.clock.Step(10 * time.Second)
	b.told(t, "not understood")
	b.offers(t, "told nonsense", false, even)
	// Whatever the clock of the controller says.
	for i, apart := range []time.Duration{0, 2 * time.Minute, -2 * time.Minute, 24 * time.Hour, -24 * time.Hour} {
		b.told(t, waiting(3, 1, apart))
		b.offers(t, "somebody waits, its clock apart by "+apart.String(), true, both(of(15, 1+1<<i), of(15, 1+1<<i)))
		b.clock.Step(5 * time.Second)
		b.told(t, "")
		b.offers(t, "nobody waits any more", false, even)
	}

	b.told(t, waiting(3, 1, 0))
	b.offers(t, "somebody waits again", true, both(of(15, 20), of(15, 20)))
	grant("another", 1, 4)
	b.offers(t, "a claim came", true, both(of(15, 2), of(15, 2)))
	b.clock.Step(4 * time.Second)
	b.told(t, waiting(3, 1, 0))
	b.offers(t, "the round of the GPUs goes on", true, both(of(15, 2), of(15, 2)))
	b.clock.Step(time.Second)
	b.offers(t, "it does not", true, both(of(15, 3), of(15, 3)))

	b.told(t, waiting(6, 2, 0))
	grant("third", 0, 4)
	b.offers(t, "two shares of one GPU, at once", true, both(of(10, 4), of(10, 3)))
	b.clock.Step(10 * time.Second)
	b.told(t, "")
	b.offers(t, "told of it no more", false, both(of(8, 2), of(15, 2)))
}
