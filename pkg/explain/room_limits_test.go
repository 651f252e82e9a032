// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
	room := s.room(t, engine, claim(request("r", wholeClass)))
	if !room.Fits() || room.Nodes[0].Open() || !room.Nodes[1].Open() {
		t.Errorf("got %+v, want room on n1 alone", room)
	}
	lacks := room.Nodes[0].Lacks
	if len(lacks) != 1 || !strings.Contains(explain.Lack(lacks[0]), "invalid resource pools") {
		t.Errorf("n0 lacks %+v", lacks)
	}
}

// endless never finds an end on one node, or on every; on others it finds no devices.
type endless struct {
	on    string
	calls []string
}

func (e *endless) Allocate(ctx context.Context, node *corev1.Node, _ []*resourceapi.ResourceClaim) (
	[]resourceapi.AllocationResult, error) {
	if e.calls = append(e.calls, node.Name); node.Name != e.on && e.on != "every" {
		return nil, nil
	}
	for ctx.Err() == nil {
	}
	return nil, ctx.Err()
}

// instead is a scheduling.NewAllocator.
func (e *endless) instead(context.Context, structured.Features, structured.AllocatedState,
	structured.DeviceClassLister, []*resourceapi.ResourceSlice, *cel.Cache) (structured.Allocator, error) {
	return e, nil
}

// A search without an end is cut off on its node alone, and never counts as room, nor as none.
func TestSearchOfANodeEnds(t *testing.T) {
	for on, test := range map[string]struct{ unsearched bool }{
		"n0": {true}, "n1": {true},
		// The scheduler does not look at the devices of n2, whatever they are.
		"n2": {false},
	} {
		t.Run(on, func(t *testing.T) {
			s, e := threeNodes(t), &endless{on: on}
			room := s.room(t, engine.With(e.instead), claim(request("r", wholeClass)))
			if got := strings.Join(e.calls, " "); got != "n0 n1 n2" || room.Refused != nil || room.Fits() {
				t.Errorf("it searched %s: %+v", got, room)
			}
			says, helps := explain.Unsearched(room)
			if (says != "") != test.unsearched || (helps != "") != test.unsearched {
				t.Errorf("it says %q, %q", says, helps)
			}
			for _, n := range room.Nodes {
				if got := explain.Lack(n.Lacks[0]); strings.Contains(got, "not searched to the end") != (n.Name == on) {
					t.Errorf("node %s lacks %s", n.Name, got)
				}
			}
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
			expect.NoError(t, err)
			if room, err := finder.Find(test.ctx, podOn(""), claims, scheduling.FirstRoom); !errors.Is(err, reason) {
				t.Errorf("got %+v, %v, want the error of the context", room, err)
			}
			if room, err := finder.Find(t.Context(), podOn(""), claims, scheduling.FirstRoom); err != nil || room.Fits() {
				t.Errorf("with time: got %+v, %v, want no room", room, err)
			}
		})
	}
}
