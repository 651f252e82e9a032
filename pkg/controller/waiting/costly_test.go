// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// atCostlyGate adds the gate that the policy adds in a namespace with costly claims.
func atCostlyGate(p *corev1.Pod) {
	p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.GateCostlyClaims})
}

// dear is a claim for 17 shares: on a node with one GPU there is one way to have them, on one with two GPUs there are
// 2^17.
func dear() resourceapi.ResourceClaimSpec {
	spec := claimOf("share.gpu.aliyun.com", "1Gi", 1)
	for i := range 16 {
		r := spec.Devices.Requests[0].DeepCopy()
		r.Name = fmt.Sprint("gpu-", i)
		spec.Devices.Requests = append(spec.Devices.Requests, *r)
	}
	return spec
}

// pinnedOn checks to which node a pod is pinned; empty means none.
func (s *site) pinnedOn(when, name, node string) {
	s.Helper()
	var want *corev1.Affinity
	if node != "" {
		want = scheduling.PinnedTo(node, nil)
	}
	expect.Equal(s, want, s.podNow(name).Spec.Affinity, "%s: the affinity of pod %s", when, name)
}

// toldOnce checks the Events since the last time.
func (s *site) toldOnce(when string, want ...string) {
	s.Helper()
	synctest.Wait()
	for len(s.recorder.Events) > 0 {
		got := <-s.recorder.Events
		if len(want) == 0 || !strings.Contains(got, want[0]) {
			s.Errorf("%s: told %q, want %q", when, got, want)
			return
		}
		want = want[1:]
	}
	if len(want) > 0 {
		s.Errorf("%s: not told %q", when, want)
	}
}

// A pod that cannot keep the scheduler for long on any node goes to the scheduler, with or without room.
func TestCostlyGateOpensForWhatIsCheap(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"with room":            func(*corev1.Pod) {},
		"no node has room":     func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"on": "nowhere"} },
		"no GPUs":              func(p *corev1.Pod) { p.Spec.ResourceClaims = nil },
		"a gang":               func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} },
		"the pod's own choice": func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelNodePlacement: "any"} },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, mode.Exclusive, func(s *site) {
				s.waits("p", claimOf(whole, "", 1), atCostlyGate, change)
				s.at("at once", "p")
				s.pinnedOn("at once", "p", "")
				s.toldOnce("at once")
			}, "a")
		})
	}
}

// A dear pod goes on as soon as a node with a short search has room, however late that is, and only to that node.
func TestDearPodsWaitForANodeThatIsSearchedInTime(t *testing.T) {
	run(t, mode.Share, func(s *site) {
		s.waits("p", dear(), atCostlyGate)
		s.at("at first", "p", v1alpha1.GateCostlyClaims)
		s.toldOnce("where each search is long", "no node that the pod may use lets the scheduler finish its search")
		time.Sleep(10 * gateMost)
		s.at("later", "p", v1alpha1.GateCostlyClaims)
		s.nominated("later", "p", "")

		s.waits("holder", claimOf(whole, "", 1), func(p *corev1.Pod) {
			p.Spec.ResourceClaims, p.Spec.NodeName, p.Status.Phase = nil, "small", corev1.PodRunning
			p.Spec.Containers[0].Resources.Requests = amounts("16", "1Gi", "1")
		})
		s.nodeOf(1, "small", mode.Share)
		time.Sleep(heldAgain.Most)
		s.at("on a node without room", "p", v1alpha1.GateCostlyClaims)
		s.toldOnce("on a node without room", "no node has room for the pod's GPUs and lets the scheduler finish its search")

		apitest.Delete[*corev1.Pod](s, s.client, "ns", "holder")
		time.Sleep(heldAgain.Most)
		s.at("with room", "p")
		s.nominated("with room", "p", "small")
		s.pinnedOn("with room", "p", "small")
	}, "large")
}

// A pod whose claim does not exist yet may be dear.
func TestPodsStayWhileAClaimIsMissing(t *testing.T) {
	run(t, mode.Share, func(s *site) {
		s.waits("other", dear(), func(p *corev1.Pod) {
			atCostlyGate(p)
			p.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("late")
		})
		time.Sleep(2 * gateMost)
		s.at("without its claim", "other", v1alpha1.GateCostlyClaims)
		s.toldOnce("without its claim", heldForClaim)
		apitest.Create(s, s.client, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "late"},
			Spec: claimOf("share.gpu.aliyun.com", "1Gi", 1)})
		time.Sleep(heldAgain.Most)
		s.at("with a cheap one", "other")
	}, "a")
}

// A leader that stops before it finds a node, or between the nomination and the gate, leaves no pod behind. Two leaders
// at the same time pin a pod once.
func TestCostlyGateAcrossLeaders(t *testing.T) {
	run(t, mode.Share, func(s *site) {
		s.nodeOf(1, "small", mode.Share)
		time.Sleep(time.Minute)
		var ended atomic.Bool
		apitest.Answer(s.client, "patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetSubresource() == "" && !ended.Load(), nil, errors.New("not now")
		})
		s.waits("named", dear(), atCostlyGate)
		s.nominated("by a leader that gets no further", "named", "small")
		s.at("by a leader that gets no further", "named", v1alpha1.GateCostlyClaims)
		s.stop()
		ended.Store(true)
		s.start()
		stop := s.stop
		s.at("by the next leader", "named")
		s.pinnedOn("by the next leader", "named", "small")

		s.nodeOf(1, "other", mode.Share)
		time.Sleep(time.Minute)
		s.start()
		s.waits("twice", dear(), atCostlyGate)
		time.Sleep(time.Minute)
		s.at("by two leaders", "twice")
		s.pinnedOn("by two leaders", "twice", "other")
		stop()
	}, "large")
}

// madeFor is the claim that Kubernetes makes of a template for a pod.
func madeFor(p *corev1.Pod, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{Spec: spec, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: p.Name + "-gpu",
		OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true)}}}}
}

// What counts is the claim that the scheduler will search for: a template that was made again is another one.
func TestCostlyGateLooksAtTheClaimThatWasMade(t *testing.T) {
	run(t, mode.Share, func(s *site) {
		made := func(pod string, spec resourceapi.ResourceClaimSpec) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				atCostlyGate(p)
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
				p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu",
					ResourceClaimName: ptr.To(pod + "-gpu")}}
				apitest.Create(s, s.client, madeFor(p, spec))
			}
		}
		cheap := claimOf("share.gpu.aliyun.com", "1Gi", 1)
		apitest.Create(s, s.client, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"},
			Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: cheap}})
		s.waits("cheap", cheap, made("cheap", cheap))
		s.at("with a cheap claim", "cheap")
		s.waits("dear", cheap, made("dear", dear()))
		s.at("with a dear claim", "dear", v1alpha1.GateCostlyClaims)
	}, "a")
}

// A claim that is not made yet is waited for; only a pod whose claim stays away is told so.
func TestCostlyGateWaitsForTheClaimOfATemplate(t *testing.T) {
	run(t, mode.Share, func(s *site) {
		cheap := claimOf("share.gpu.aliyun.com", "1Gi", 1)
		s.waits("p", cheap, atCostlyGate, func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
		})
		s.at("without its claim", "p", v1alpha1.GateCostlyClaims)
		s.toldOnce("without its claim")
		apitest.Create(s, s.client, madeFor(s.podNow("p"), cheap))
		s.change("p", func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu",
				ResourceClaimName: ptr.To("p-gpu")}}
		})
		s.at("as soon as it is made", "p")
		s.toldOnce("as soon as it is made")
	}, "a")
}

// A pod goes where a claim of it is allocated: what its others cost elsewhere keeps it from nothing.
func TestCostlyGateBesideAnAllocatedClaim(t *testing.T) {
	run(t, mode.Share, func(s *site) {
		s.nodeOf(1, "small", mode.Share)
		time.Sleep(time.Minute)
		s.waits("shared", claimOf("share.gpu.aliyun.com", "1Gi", 1), func(p *corev1.Pod) { p.Spec.NodeName = "small" })
		s.takes("shared", "small", "shared", "gpu-0")
		apitest.Change(s, s.client, "ns", "shared", func(claim *resourceapi.ResourceClaim) {
			claim.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
					Values: []string{"small"}}}}}}
		})
		s.waits("p", dear(), atCostlyGate, func(p *corev1.Pod) {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims,
				corev1.PodResourceClaim{Name: "shared", ResourceClaimName: ptr.To("shared")})
		})
		s.at("at once", "p")
		s.pinnedOn("at once", "p", "")
	}, "large")
}

// Who made a pod may have put it at the other gate, as from a copy of another pod.
func TestBothGatesOpenTogether(t *testing.T) {
	for name, gates := range map[string][]func(*corev1.Pod){
		"the costly one last": {gated(), atCostlyGate}, "the costly one first": {atCostlyGate, gated()},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, mode.Exclusive, func(s *site) {
				s.waits("p", claimOf(whole, "", 1), gates...)
				s.at("at once", "p")
			}, "a")
		})
	}
}

// A pod that changes while its gate is opened is looked at again, as it is then.
func TestGateIsOpenedAgainWhereThePodChanges(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		var refuses sync.Once
		apitest.Answer(s.client, "patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			err := error(nil)
			if a.GetSubresource() == "" {
				refuses.Do(func() { err = apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil) })
			}
			return err != nil, nil, err
		})
		s.waits("p", claimOf(whole, "", 1), gated())
		s.change("p", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"on": "a"} })
		time.Sleep(gateAgain + time.Second)
		s.at("after another try", "p")
	}, "a")
}
