// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// gated has a pod wait at the gate, as the policy does, and at gates of others.
func gated(others ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range append(others, v1alpha1.GateBestNode) {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
		}
	}
}

// gatesOf are the names of the gates that a pod is at.
func (s *site) gatesOf(name string) []string {
	s.Helper()
	var names []string
	for _, gate := range s.podNow(name).Spec.SchedulingGates {
		names = append(names, gate.Name)
	}
	return names
}

// at checks at which gates a pod is.
func (s *site) at(when, name string, want ...string) {
	s.Helper()
	expect.Equal(s, want, s.gatesOf(name), "%s: pod %s is at the gates", when, name)
}

// The scheduler looks at a pod when its gate is off: it is nominated by then.
func TestGateOpensAfterTheNomination(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		opened := ""
		apitest.Answer(s.client, "patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "" {
				opened = s.nominationNow("p")
			}
			return false, nil, nil
		})
		s.waits("p", claimOf(whole, "", 1), gated())
		s.at("when it was looked at", "p")
		expect.Equal(t, "a", opened, "the gate was opened while the pod was nominated to")
		s.nominated("when it was looked at", "p", "a")
	}, "a")
}

// nominationNow is the node that a pod is nominated to, also while something is under way.
func (s *site) nominationNow(name string) string {
	object, err := s.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "ns", name)
	if pod, is := object.(*corev1.Pod); err == nil && is {
		return pod.Status.NominatedNodeName
	}
	return ""
}

// Who finds no room, or is not to be nominated, is for the scheduler at once, which says why to the pod.
func TestGateOpensWithoutANomination(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"no node has room":     func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"on": "nowhere"} },
		"no GPUs":              func(p *corev1.Pod) { p.Spec.ResourceClaims = nil },
		"a claim is not there": func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("other") },
		"another scheduler":    func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" },
		"a gang": func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
		},
		"the scheduler's choice": func(p *corev1.Pod) {
			p.Labels = map[string]string{v1alpha1.LabelNodePlacement: "any"}
		},
		"somebody else's nomination": func(p *corev1.Pod) { p.Status.NominatedNodeName = "b" },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, mode.Exclusive, func(s *site) {
				s.waits("p", claimOf(whole, "", 1), change, gated())
				s.at("at once", "p")
			}, "a")
		})
	}
}

// Kueue's gate is off when the pod is admitted: then it is nominated, by what is free by then.
func TestGatesOfOthersComeFirst(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("p", claimOf(whole, "", 2), gated("kueue"))
		time.Sleep(time.Minute)
		s.at("before it is admitted", "p", "kueue", v1alpha1.GateBestNode)
		s.nominated("before it is admitted", "p", "")
		s.holds("a", "meanwhile", "gpu-0")
		s.change("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = p.Spec.SchedulingGates[1:] })
		s.at("afterwards", "p")
		s.nominated("afterwards", "p", "b")
	}, "a", "b")
}

// slow is a Client whose claims are read after some time, or never.
type slow struct {
	Client
	typedresourcev1.ResourceClaimInterface
	after time.Duration
}

func (s slow) ResourceClaims(ns string) typedresourcev1.ResourceClaimInterface {
	s.ResourceClaimInterface = s.Client.ResourceClaims(ns)
	return s
}

func (s slow) Get(ctx context.Context, name string, o metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.after):
		return s.ResourceClaimInterface.Get(ctx, name, o)
	}
}

// A pod waits for its nomination no longer than is stated.
func TestGateOpensInTime(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration
		want  string
	}{
		"late, but not too late": {gateMost - time.Second, "a"},
		"too late":               {time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, mode.Exclusive, func(s *site) {
				s.nominator.wishes.client = slow{Client: s.nominator.Client, after: test.after}
				s.waits("p", claimOf(whole, "", 1), gated())
				s.at("at first", "p", v1alpha1.GateBestNode)
				time.Sleep(gateMost)
				s.at("within the stated time", "p")
				s.nominated("when it goes on", "p", test.want)
			}, "a")
		})
	}
}

// An API server that takes no writes for a while is asked again.
func TestGateIsOpenedAgain(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		var refuses sync.Once
		refused := 0
		apitest.Answer(s.client, "patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			err := error(nil)
			if a.GetSubresource() == "" {
				refuses.Do(func() { err = errors.New("not now"); refused++ })
			}
			return err != nil, nil, err
		})
		s.waits("p", claimOf(whole, "", 1), gated())
		time.Sleep(gateAgain + time.Second)
		s.at("after another try", "p")
		expect.Equal(t, 1, refused, "writes refused")
	}, "a")
}

// A leader that ends leaves pods at the gate: the next one has them go on, and so do two at the same time. Each pod is
// on a node that has room for it.
func TestGatesAcrossLeaders(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("first", claimOf(whole, "", 1), gated())
		s.at("by the first leader", "first")
		s.stop()
		for i := range 2 {
			s.waits(fmt.Sprint("between-", i), claimOf(whole, "", 1), gated())
		}
		s.at("without a leader", "between-0", v1alpha1.GateBestNode)
		s.start()
		stop := s.stop
		s.start()
		s.waits("second", claimOf(whole, "", 1), gated())
		time.Sleep(10 * time.Second)
		on := map[string]int{}
		for _, name := range []string{"first", "between-0", "between-1", "second"} {
			s.at("by two leaders", name)
			on[s.nominationOf(name)]++
		}
		if on["a"] != 2 || on["b"] != 2 {
			t.Errorf("pods by node %v, with two GPUs on each", on)
		}
		stop()
	}, "a", "b")
}

// Without the setting the gates are off at once, whoever shut them, but for those of costly claims: nobody judges
// these.
func TestGatesWithoutNominations(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.stop()
		ctx, cancel := context.WithCancel(s.Context())
		known := cache.New(cache.Options{Client: s.client})
		opener := New(Config{Cache: known.Reader(), Client: s.client.ResourceV1(), Gates: apitest.PatchingPods(s.client),
			Engine: scheduling.NewEngine(scheduling.ExpressionsMost), Events: report.New(s.recorder, clock.RealClock{}),
			Clock: clock.RealClock{}}).Controller()
		var running sync.WaitGroup
		running.Go(func() { known.Run(ctx) })
		running.Go(func() { opener.Run(ctx, 1) })
		s.waits("p", claimOf(whole, "", 1), gated("kueue"))
		s.waits("costly", claimOf(whole, "", 1), atCostlyGate)
		time.Sleep(time.Minute)
		s.at("at once", "p", "kueue")
		s.nominated("without the setting", "p", "")
		s.at("without the setting", "costly", v1alpha1.GateCostlyClaims)
		s.toldOnce("without the setting", heldByNobody)
		cancel()
		running.Wait()
		s.stop = func() {}
	}, "a")
}

// What came of nominations counts once for each pod.
func TestOutcomes(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		place := func(pod, node, gpu string) {
			s.takes(pod, node, pod, gpu)
			synctest.Wait()
			s.change(pod, func(p *corev1.Pod) { p.Spec.NodeName = node })
			synctest.Wait()
			s.change(pod, func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.Now()) })
		}
		s.holds("a", "old", "gpu-0")
		s.waits("right", claimOf(whole, "", 1))
		s.nominated("beside old", "right", "a")
		place("right", "a", "gpu-1")
		s.waits("wrong", claimOf(whole, "", 1))
		place("wrong", map[string]string{"b": "c", "c": "b"}[s.nominationOf("wrong")], "gpu-0")
		// The scheduler is faster.
		s.waits("late", claimOf(whole, "", 3))
		s.nominated("without room", "late", "")
		place("late", "b", "gpu-1")
		s.waits("none", claimOf(whole, "", 1), func(p *corev1.Pod) { p.Spec.ResourceClaims = nil })
		s.change("none", func(p *corev1.Pod) { p.Spec.NodeName = "a" })
		synctest.Wait()
		want := map[Outcome]int{Right: 1, Wrong: 1, Late: 1}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.outcomes) != 3 || s.outcomes[Right] != want[Right] || s.outcomes[Wrong] != want[Wrong] ||
			s.outcomes[Late] != want[Late] {
			t.Errorf("outcomes are %v, want %v", s.outcomes, want)
		}
	}, "a", "b", "c")
}
