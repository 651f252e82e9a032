// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Each pod is placed where the scheduler's allocator finds room for it beside the others, and
// on no node only where it finds none on any.
func TestPodsArePlacedOneAfterTheOther(t *testing.T) {
	known, classes := map[string]*gpu.Machine{}, allClasses(t)
	for _, name := range machines {
		known[name] = machine(t, name)
	}
	var some, none int
	for seed := range uint64(100) {
		d := dice{rand.New(rand.NewPCG(seed, 41))}
		s := newStage(classes)
		for n := range 1 + d.IntN(3) {
			name := fmt.Sprintf("n%d", n)
			s.add(name, d.resources(known, name))
			for range d.IntN(6) {
				s.hold(t, name, d.request("r"))
			}
		}
		// Two kinds of pods, in turn: those of one kind are alike.
		asked := []resourceapi.DeviceRequest{d.request("r"), d.request("r")}
		var wanted []scheduling.Pod
		for i := range 6 {
			c := claim(asked[i%2])
			c.Name = fmt.Sprint("wanted-", i)
			wanted = append(wanted, scheduling.Pod{Pod: podOn(""), Claims: []*resourceapi.ResourceClaim{c}})
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			placed, err := engine.Place(t.Context(), s.Snapshot, wanted)
			expect.NoError(t, err)
			for i, w := range wanted {
				want := ""
				for _, node := range s.Nodes {
					if s.hold(t, node.Name, w.Claims[0].Spec.Devices.Requests...) != nil {
						want = node.Name
						break
					}
				}
				if placed[i].Node != want || placed[i].Unsearched {
					t.Errorf("pod %d is placed on %q of %+v, want %q", i, placed[i].Node, placed, want)
				}
				if want == "" {
					none++
				} else {
					some++
				}
			}
		})
	}
	if some < 50 || none < 50 {
		t.Errorf("%d pods found room, %d did not: too few to show anything", some, none)
	}
}

// Pods that share a claim go where the first of them is.
func TestPodsOfOneClaimArePlacedTogether(t *testing.T) {
	s := newStage(allClasses(t))
	for _, name := range []string{"n0", "n1"} {
		s.add(name, devices.Build(machine(t, "t4x1"), devices.Options{Pool: v1alpha1.PoolName(name), Mode: mode.Exclusive,
			Isolation: "none"}))
	}
	shared := []*resourceapi.ResourceClaim{claim(request("r", wholeClass))}
	alone := claim(request("r", wholeClass))
	alone.Name = "alone"
	var wanted []scheduling.Pod
	for _, claims := range [][]*resourceapi.ResourceClaim{shared, shared, {alone}, shared} {
		wanted = append(wanted, scheduling.Pod{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}},
			Claims: claims})
	}
	placed, err := engine.Place(t.Context(), s.Snapshot, wanted)
	want := []string{"n0", "n0", "n1", "n0"}
	on := func(p scheduling.Placed, node string) bool { return p.Node == node }
	if err != nil || !slices.EqualFunc(placed, want, on) {
		t.Errorf("placed %+v, %v, want %+v", placed, err, want)
	}
}

// Where others' use of devices is said to be all that is in the way, it is by what is published, too.
func TestWhatOthersUseCouldFit(t *testing.T) {
	known, classes := map[string]*gpu.Machine{}, allClasses(t)
	for _, name := range machines {
		known[name] = machine(t, name)
	}
	inUse, situations := 0, uint64(300)
	if testing.Short() {
		situations = 30
	}
	for seed := range situations {
		d := dice{rand.New(rand.NewPCG(seed, 25))}
		s := newStage(classes)
		for n := range 1 + d.IntN(3) {
			name := fmt.Sprintf("n%d", n)
			s.add(name, d.resources(known, name))
			for range 40 {
				s.hold(t, name, d.request("r"))
			}
		}
		claims := []*resourceapi.ResourceClaim{claim(d.request("r"))}
		room := s.room(t, engine, claims...)
		if room.InUse(claims) {
			inUse++
		}
		s.agrees(t, podOn(""), claims, room)
	}
	if inUse < 40 && !testing.Short() {
		t.Errorf("others use all in %d situations: too few to show anything", inUse)
	}
}

// lacks are what a node is said to lack for one request alone, before the allocator is asked.
func (s *stage) lacks(t *testing.T, node int, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) []scheduling.Lack {
	one := s.Snapshot
	one.Nodes = s.Nodes[node : node+1]
	finder, err := engine.NewFinder(t.Context(), one)
	expect.NoError(t, err)
	room, err := finder.Find(t.Context(), pod, claims, scheduling.FirstRoom)
	expect.NoError(t, err)
	return room.Nodes[0].Lacks
}

// agrees checks that the shorter ways to the same answer, which the controller's Events use,
// lead to it.
func (s *stage) agrees(t *testing.T, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, room scheduling.Room) {
	t.Helper()
	finder, err := engine.NewFinder(t.Context(), s.Snapshot)
	expect.NoError(t, err)
	first, err := finder.Find(t.Context(), pod, claims, scheduling.FirstRoom)
	expect.NoError(t, err)
	if room.Refused == nil && first.Fits() != room.Fits() {
		t.Errorf("looked at in short, there is room: %v, in full %v", first.Fits(), room.Fits())
	}
	if !first.Fits() && first.Refused == nil && explain.Nearest(first, 2) == "" &&
		slices.ContainsFunc(first.Nodes, func(n scheduling.NodeRoom) bool {
			return n.Closed.By == scheduling.Open && n.GPUs > 0
		}) {
		t.Errorf("of %+v nothing is nearest", first)
	}
	published := scheduling.Published{Classes: s.Classes, Labels: map[string]map[string]string{}}
	closed := map[string]corev1.NodeSpec{}
	published.Closed = func(node string) corev1.NodeSpec { return closed[node] }
	for _, node := range s.Nodes {
		published.Labels[node.Name], closed[node.Name] = node.Labels, node.Spec
	}
	for _, slice := range s.Slices {
		published.Slices = append(published.Slices, view.Read(slice))
	}
	cluster, err := explain.New(engine, unlimited).Look(published)
	expect.NoError(t, err)
	e, err := cluster.Explain(t.Context(), pod, claims)
	expect.NoError(t, err)
	if room.InUse(claims) && !e.Busy {
		t.Errorf("others use what is asked for, and of what is published it says: %s", e.Message)
	}
	if room.Fits() && !e.Busy && e.Message != "" {
		t.Errorf("there is room, and of what is published it says: %s", e.Message)
	}
}
