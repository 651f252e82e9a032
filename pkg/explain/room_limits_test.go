// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// threeNodes are the open nodes n0 and n1, each with a T4 as a whole, and n2, which is tainted.
func threeNodes(t *testing.T) *stage {
	t.Helper()
	s := newStage(allClasses(t))
	for _, name := range []string{"n0", "n1", "n2"} {
		var taints []corev1.Taint
		if name == "n2" {
			taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
		}
		s.add(name, devices.Build(machine(t, "t4x1"), devices.Options{Pool: v1alpha1.PoolName(name), Mode: mode.Exclusive,
			Isolation: "none"}), taints...)
	}
	return s
}

// The scheduler passes over a node with an invalid pool, and places the pod elsewhere.
func TestInvalidPoolIsThatOfItsNode(t *testing.T) {
	s := threeNodes(t)
	twice := s.Slices[0].DeepCopy()
	twice.Name = "again"
	for _, slice := range []*resourceapi.ResourceSlice{s.Slices[0], twice} {
		slice.Spec.Pool.ResourceSliceCount = 2
	}
	s.Slices = append(s.Slices, twice)
	room, err := engine.FindRoom(t.Context(), s.Snapshot, podOn(""),
		[]*resourceapi.ResourceClaim{claim(request("r", wholeClass))})
	if err != nil {
		t.Fatal(err)
	}
	if !room.Fits() || room.Nodes[0].Open() || !room.Nodes[1].Open() {
		t.Errorf("got %+v, want room on n1 alone", room)
	}
	lacks := room.Nodes[0].Lacks
	if len(lacks) != 1 || !strings.Contains(explain.Lack(lacks[0]), "invalid resource pools") {
		t.Errorf("n0 lacks %+v", lacks)
	}
}

// endless never finds an end on one node; on others it finds no devices.
type endless struct {
	on    string
	calls []string
}

func (e *endless) Allocate(ctx context.Context, node *corev1.Node, _ []*resourceapi.ResourceClaim) (
	[]resourceapi.AllocationResult, error) {
	if e.calls = append(e.calls, node.Name); node.Name != e.on {
		return nil, nil
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// instead is a scheduling.NewAllocator.
func (e *endless) instead(context.Context, structured.Features, structured.AllocatedState,
	structured.DeviceClassLister, []*resourceapi.ResourceSlice, *cel.Cache) (structured.Allocator, error) {
	return e, nil
}

// A search without an end ends, as the scheduler's does, and no other node is searched.
func TestSearchOfANodeEnds(t *testing.T) {
	for on, test := range map[string]struct {
		asked   string
		refused bool
	}{
		"n0": {"n0", true},
		"n1": {"n0 n1", true},
		// The scheduler does not look at the devices of n2, whatever they are.
		"n2": {"n0 n1 n2", false},
	} {
		t.Run(on, func(t *testing.T) {
			s := threeNodes(t)
			synctest.Test(t, func(t *testing.T) {
				e := &endless{on: on}
				room, err := engine.With(e.instead).FindRoom(t.Context(), s.Snapshot, podOn(""),
					[]*resourceapi.ResourceClaim{claim(request("r", wholeClass))})
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(e.calls, " "); got != test.asked || len(room.Nodes) != 3 {
					t.Errorf("it searched %s of %+v, want %s", got, room.Nodes, test.asked)
				}
				if (room.Refused != nil) != test.refused || room.Fits() {
					t.Errorf("got %+v", room)
				}
				for _, n := range room.Nodes {
					timed := len(n.Lacks) == 1 && strings.Contains(explain.Lack(n.Lacks[0]),
						"timed out trying to allocate devices of node "+on)
					if timed != (n.Name >= on) {
						t.Errorf("node %s lacks %+v", n.Name, n.Lacks)
					}
				}
			})
		})
	}
}

// later is a context that has ended, but for who looks at it first.
type later struct {
	context.Context
	looked int
}

func (l *later) Err() error {
	if l.looked++; l.looked == 1 {
		return nil
	}
	return l.Context.Err()
}

// Selectors that were interrupted are no selectors that do not match: where no node can fit, the
// allocator is not asked, and a look that takes too long has to end all the same.
func TestLookThatTakesTooLongEndsWhereNoNodeCanFit(t *testing.T) {
	s := threeNodes(t)
	claims := []*resourceapi.ResourceClaim{claim(request("r", wholeClass, count(2)))}
	over, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the test has ended it")
	cancel(reason)
	for name, test := range map[string]struct {
		situation scheduling.Snapshot
		ctx       context.Context
	}{
		"at once": {s.Snapshot, over},
		"on the last node": {scheduling.Snapshot{Nodes: s.Nodes[:1], Slices: s.Slices, Classes: s.Classes},
			&later{Context: over}},
	} {
		t.Run(name, func(t *testing.T) {
			finder, err := engine.NewFinder(t.Context(), test.situation)
			if err != nil {
				t.Fatal(err)
			}
			if room, err := finder.Find(test.ctx, podOn(""), claims, scheduling.FirstRoom); !errors.Is(err, reason) {
				t.Errorf("got %+v, %v, want the error of the context", room, err)
			}
			if room, err := finder.Find(t.Context(), podOn(""), claims, scheduling.FirstRoom); err != nil || room.Fits() {
				t.Errorf("with time: got %+v, %v, want no room", room, err)
			}
		})
	}
}
