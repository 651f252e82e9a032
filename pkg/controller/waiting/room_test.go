// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// clocked are rooms each of whose situations takes some time to read.
type clocked struct {
	*rooms
	time  time.Time
	reads int
	// told is whether those who ask were told before.
	told bool
}

func newClocked(takes time.Duration) *clocked {
	c := &clocked{time: time.Unix(1000, 0)}
	engine := scheduling.NewEngine(1)
	c.rooms = newRooms(func(ctx context.Context, _ bool) (*scheduling.Finder, error) {
		c.reads++
		c.time = c.time.Add(takes)
		return engine.NewFinder(ctx, scheduling.Snapshot{Nodes: []*corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}})
	}, func() time.Time { return c.time })
	return c
}

// ask asks for a claim of a class.
func (c *clocked) ask(t *testing.T, class string) bool {
	t.Helper()
	claim := &resourceapi.ResourceClaim{}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}
	room, known, err := c.of(t.Context(), &corev1.Pod{}, []*resourceapi.ResourceClaim{claim}, false, c.told)
	if err != nil || known && len(room.Nodes) != 1 {
		t.Fatalf("%+v, %v", room, err)
	}
	return known
}

func TestEqualRequestsShareALook(t *testing.T) {
	c := newClocked(100 * time.Millisecond)
	for range 500 {
		if !c.ask(t, "a") {
			t.Fatal("it is not told")
		}
	}
	if len(c.known) != 1 || c.reads != 1 {
		t.Errorf("%d looks at %d situations, want 1", len(c.known), c.reads)
	}
	// Others are answered of the same moment, until that is long ago.
	if !c.ask(t, "b") || len(c.known) != 2 || c.reads != 1 {
		t.Errorf("%d looks at %d situations, want 2 at 1", len(c.known), c.reads)
	}
	c.time = c.time.Add(fresh)
	if !c.ask(t, "a") || len(c.known) != 1 || c.reads != 2 {
		t.Errorf("later %d looks at %d situations, want 1 at the second", len(c.known), c.reads)
	}
}

// A crowd of which each pod asks for something else, in a cluster that takes long to look at.
func TestLookingTakesAPartOfTheTime(t *testing.T) {
	const takes = 500 * time.Millisecond
	c := newClocked(takes)
	began, told := c.time, 0
	for i := range 10000 {
		if c.ask(t, fmt.Sprint(i)) {
			told++
		}
		c.time = c.time.Add(50 * time.Millisecond)
		c.made = time.Time{} // each is asked of a moment of its own
	}
	spent, passed := time.Duration(c.reads)*takes, c.time.Sub(began)
	if most := passed/lookPart + lookBurst + takes; spent > most || told < 50 {
		t.Errorf("of %v it looked %v, at most %v is right; %d were told", passed, spent, most, told)
	}
}

// Under load, pods that were told before leave the time to those that were not.
func TestLooksAreFirstForWhoWasNotTold(t *testing.T) {
	c := newClocked(lookBurst - lookFirst + 200*time.Millisecond)
	if c.told = true; !c.ask(t, "a") {
		t.Fatal("with all of the time left it is not looked")
	}
	c.made = time.Time{}
	expect.Equal(t, false, c.ask(t, "b"), "of the time for the others it is looked for a pod that was told before")
	if c.told = false; !c.ask(t, "c") {
		t.Error("it is not looked for one that was not")
	}
}
