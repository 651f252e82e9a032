// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// eight adds nodes that have eight GPUs of 80 GiB each in a mode.
func eight(t *testing.T, m mode.Mode, names ...string) *stage {
	t.Helper()
	s := newStage(allClasses(t))
	for _, name := range names {
		s.add(name, devices.Build(machine(t, "a100x8"), devices.Options{Pool: v1alpha1.PoolName(name), Mode: m,
			Slots: 20, Isolation: "none"}))
	}
	return s
}

// many are so many equal requests in one claim.
func many(n int, class string, options ...option) *resourceapi.ResourceClaim {
	var requests []resourceapi.DeviceRequest
	for i := range n {
		requests = append(requests, request(fmt.Sprint("r", i), class, options...))
	}
	return claim(requests...)
}

// tooMany can be met one by one on eight GPUs, and not at once, which takes a search through all permutations.
func tooMany() *resourceapi.ResourceClaim {
	return many(9, shareClass, amount(v1alpha1.CapMemory, "80Gi"))
}

// asked counts how often a search asks whether it has to end.
type asked struct {
	context.Context
	n int
}

func (a *asked) Err() error {
	a.n++
	return nil
}

// Bounds in steps rely on the library: its search asks its context once a step, and at nothing else.
func TestTheAllocatorAsksOnceAStep(t *testing.T) {
	shared, whole := eight(t, mode.Share, "n"), eight(t, mode.Exclusive, "n")
	without := stockallocator.Features()
	without.ConsumableCapacity, without.DeviceBindingAndStatus = false, false
	for name, test := range map[string]struct {
		of       *stage
		class    string
		features structured.Features
		last     []int
	}{
		"incubating":   {shared, shareClass, stockallocator.Features(), []int{1, 17, 145, 1169}},
		"experimental": {shared, shareClass, stockallocator.Features(), []int{1, 17, 145, 1169}},
		"stable":       {whole, wholeClass, without, []int{1, 17, 129, 801}},
	} {
		t.Run(name, func(t *testing.T) {
			structured.EnableAllocators(name)
			defer structured.EnableAllocators()
			a, err := structured.NewAllocator(t.Context(), test.features, stockallocator.Nothing(),
				stockallocator.Classes(test.of.Classes), test.of.Slices, stockallocator.Expressions(9))
			expect.NoError(t, err)
			for n, want := range test.last {
				c := many(n, test.class)
				c.Spec.Devices.Requests = append(c.Spec.Devices.Requests,
					request("last", test.class, attribute("index == 99")))
				ctx := &asked{Context: t.Context()}
				got, err := a.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}},
					[]*resourceapi.ResourceClaim{c})
				if err != nil || got != nil || ctx.n != want {
					t.Errorf("%d requests: %v, %v after %d steps, want %d", n+1, got, err, ctx.n, want)
				}
			}
		})
	}
}

// What people may ask for is searched to the end, in each mode that serves it.
func TestWhatIsMeantWellIsSearchedToTheEnd(t *testing.T) {
	for name, test := range map[string]struct {
		mode  mode.Mode
		claim *resourceapi.ResourceClaim
	}{
		"eight whole GPUs where one is taken": {mode.Exclusive, claim(request("r", wholeClass, count(8)))},
		"a request for each whole GPU":        {mode.Exclusive, many(6, wholeClass)},
		"shares on all GPUs":                  {mode.Share, claim(request("r", shareClass, count(8)))},
		"four containers with a share each":   {mode.Share, many(4, shareClass, amount(v1alpha1.CapMemory, "50Gi"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := eight(t, test.mode, "n")
			for range 5 {
				if test.mode == mode.Exclusive {
					s.hold(t, "n", request("r", wholeClass))
				} else {
					s.hold(t, "n", request("r", shareClass, amount(v1alpha1.CapMemory, "50Gi")))
				}
			}
			says, _ := explain.Unsearched(s.room(t, engine, test.claim))
			expect.Equal(t, "", says, "it says")
		})
	}
}

// A search that is cut off is neither room nor none, the same each time, and ends long before it would.
func TestASearchThatIsCutOffIsSaidToBe(t *testing.T) {
	testneeds.Time(t)
	s := eight(t, mode.Share, "n0", "n1")
	claims := []*resourceapi.ResourceClaim{tooMany()}
	for _, extent := range []scheduling.Extent{scheduling.EveryNode, scheduling.FirstRoom} {
		finder, err := engine.NewFinder(t.Context(), s.Snapshot)
		expect.NoError(t, err)
		room, err := finder.Find(t.Context(), podOn(""), claims, extent)
		if err != nil || room.Fits() || room.Refused != nil {
			t.Fatalf("%+v, %v", room, err)
		}
		says, helps := explain.Unsearched(room)
		if want := "whether a node has room for its GPUs is not known: 2 nodes that it can be on were not searched to the " +
			"end: the requests can be met in too many ways"; says != want || !strings.Contains(helps, "fewer devices") {
			t.Errorf("it says %q, and that %q helps", says, helps)
		}
	}
	placed, err := engine.Place(t.Context(), s.Snapshot, []scheduling.Pod{{Pod: podOn(""), Claims: claims},
		{Pod: podOn(""), Claims: []*resourceapi.ResourceClaim{claim(request("r", shareClass))}}})
	if err != nil || placed[0].Node != "" || !placed[0].Unsearched || placed[1].Node != "n0" {
		t.Errorf("placed %+v, %v", placed, err)
	}
	e := newSite(t).node("n0", "a100x8", mode.Share).explain(podOn(""), claims...)
	if !e.Busy || !e.Unsearched || e.Never {
		t.Errorf("what is published: %+v", e)
	}
}

// A node that lacks something for one request alone cannot fit, however many ways there are for the others.
func TestWhatCannotFitIsKnownWithoutASearchToTheEnd(t *testing.T) {
	s := eight(t, mode.Share, "n0")
	wanted := many(15, shareClass)
	wanted.Spec.Devices.Requests = append(wanted.Spec.Devices.Requests,
		request("last", shareClass, amount(v1alpha1.CapMemory, "900Gi")))
	room := s.room(t, engine, wanted)
	if says, _ := explain.Unsearched(room); says != "" || room.Fits() ||
		!strings.Contains(explain.Lack(room.Nodes[0].Lacks[0]), "900Gi") {
		t.Errorf("it says %q of %+v", says, room)
	}
}

// All nodes together are bounded, too, and those that are closed to the pod take nothing from the others.
func TestAQuestionIsBoundedOnAllNodesTogether(t *testing.T) {
	const nodes = 120
	s := newStage(allClasses(t))
	for n := range nodes {
		name := fmt.Sprintf("n%03d", n)
		built := devices.Build(machine(t, "t4x1"), devices.Options{Pool: v1alpha1.PoolName(name), Mode: mode.Exclusive})
		if n < nodes/2 {
			s.add(name, built, corev1.Taint{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule})
		} else {
			s.add(name, built)
		}
	}
	e := &endless{on: "every"}
	room := s.room(t, engine.With(e.instead), claim(request("r", wholeClass)))
	if says, _ := explain.Unsearched(room); len(e.calls) != 100 ||
		!strings.Contains(says, "60 nodes that it can be on were not searched to the end") {
		t.Errorf("%d of %d nodes are searched, and it says %q", len(e.calls), nodes, says)
	}
	if last := explain.Lack(room.Nodes[nodes-1].Lacks[0]); !strings.Contains(last, "the nodes before it took too long") {
		t.Errorf("the last node lacks %q", last)
	}
}

// Selectors are programs that tenants write: those that take long are not evaluated at all.
func TestSelectorsThatTakeLongAreNotEvaluated(t *testing.T) {
	s := eight(t, mode.Share, "n0")
	loop := `lists.range(900).all(x, lists.range(100).all(y, x + y >= 0))`
	for name, test := range map[string]struct {
		selectors  []string
		unsearched bool
	}{
		"a loop over ranges": {[]string{loop}, true},
		"many of them cheap": {[]string{`["a", "b"].exists(x, device.attributes["gpu.aliyun.com"].model.contains(x))`,
			`device.attributes["gpu.aliyun.com"].memoryMiB >= 20000`}, false},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := claim(request("r", shareClass))
			for _, selector := range test.selectors {
				matching(selector)(wanted.Spec.Devices.Requests[0].Exactly)
			}
			for _, extent := range []scheduling.Extent{scheduling.EveryNode, scheduling.FirstRoom} {
				finder, err := engine.NewFinder(t.Context(), s.Snapshot)
				expect.NoError(t, err)
				room, err := finder.Find(t.Context(), podOn(""), []*resourceapi.ResourceClaim{wanted}, extent)
				says, helps := explain.Unsearched(room)
				if err != nil || (says != "") != test.unsearched || room.Fits() && test.unsearched {
					t.Errorf("it says %q, %v", says, err)
				}
				if test.unsearched && (!strings.Contains(says, "the selectors take too long to evaluate") ||
					!strings.Contains(helps, "without loops")) {
					t.Errorf("it says %q, and that %q helps", says, helps)
				}
			}
		})
	}
}

// The effort that is left over does not come back.
func TestAnEffortIsUsedUp(t *testing.T) {
	s := eight(t, mode.Share, "n0")
	a, err := engine.Allocator(t.Context(), s.Snapshot, nil)
	expect.NoError(t, err)
	effort := scheduling.NewEffort(2)
	for i := range 4 {
		_, fits, err := a.Fit(t.Context(), s.Nodes[0], []*resourceapi.ResourceClaim{tooMany()}, effort)
		if fits || !errors.Is(err, scheduling.ErrUnsearched) || strings.Contains(err.Error(), "nodes before it") != (i > 0) {
			t.Errorf("try %d: %t, %v", i, fits, err)
		}
	}
}
