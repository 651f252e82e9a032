// SPDX-License-Identifier: Apache-2.0

package spread_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// beside is a further node with two GPUs of so many GiB whose shares are spread.
func beside(name string, gib int64) func(*site) {
	return func(s *site) {
		s.Helper()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		apitest.Create(s, s.client, node)
		behind := gpu.Amount{Units: gib, Shares: 1}
		apitest.Create(s, s.client, publishedBy(name, gib, "1", behind, behind))
	}
}

// changed has node n be another.
func changed(change func(*corev1.Node)) func(*site) {
	return func(s *site) {
		s.Helper()
		apitest.Change(s, s.client, "", "n", change)
	}
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	}
}

func tolerating(key string) *corev1.Pod {
	pod := waitingPod(refused)
	pod.Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
	return pod
}

// A node that takes no pods, or not this one, offers in vain.
func TestANodeThatIsClosedIsNotTold(t *testing.T) {
	want := &placement.Waiting{Claim: "claim", GiB: 3, Shares: 2}
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		pod    *corev1.Pod
		told   bool
	}{
		"cordoned":       {func(node *corev1.Node) { node.Spec.Unschedulable = true }, waitingPod(refused), false},
		"not ready":      {tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), waitingPod(refused), false},
		"for others":     {tainted("team", corev1.TaintEffectNoSchedule), waitingPod(refused), false},
		"for this pod":   {tainted("team", corev1.TaintEffectNoSchedule), tolerating("team"), true},
		"rather another": {tainted("team", corev1.TaintEffectPreferNoSchedule), waitingPod(refused), true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, published("1", behind, behind), []*resourceapi.ResourceClaim{claim(-1, 2, 1)}, []*corev1.Pod{test.pod},
				func(s *site) {
					if test.told {
						s.told("at once", want)
						return
					}
					s.told("at once", nil)
					if got := s.waitingOn("n2"); got == nil {
						t.Error("the other node is told nothing")
					}
					time.Sleep(time.Minute)
					s.told("ever", nil)
				}, beside("n2", 15), changed(test.change))
		})
	}
}

// A pod can only go where another claim of it is allocated.
func TestANodeWithoutTheOtherClaimIsNotTold(t *testing.T) {
	other := holding("gpu-0-share", 4)
	other.Name = "d"
	other.Status.Allocation.Devices.Results[0].Pool = v1alpha1.PoolName("n2")
	other.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
			Values: []string{"n2"}}}}}}
	pod := waitingPod(refused)
	pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims,
		corev1.PodResourceClaim{Name: "other", ResourceClaimName: ptr.To("d")})
	run(t, published("1", behind, behind), []*resourceapi.ResourceClaim{claim(-1, 2, 1), other}, []*corev1.Pod{pod},
		func(s *site) {
			time.Sleep(5 * time.Second)
			if s.waitingOn("n2") == nil {
				t.Error("the node where the other claim is allocated is told nothing")
			}
			time.Sleep(time.Minute)
			s.told("ever", nil)
		}, beside("n2", 15))
}

// Of many nodes those of which the first have no room, for a crowd of pods that are alike as for one.
func TestTheLastOfManyNodesIsFound(t *testing.T) {
	many := func(s *site) {
		for i := range 120 {
			beside(fmt.Sprintf("m%03d", i), 2)(s)
		}
	}
	var crowd []*corev1.Pod
	var claims []*resourceapi.ResourceClaim
	for i := range 20 {
		crowd, claims = append(crowd, fromTemplate(fmt.Sprint("p", i))), append(claims, ofTemplate(fmt.Sprint("p", i)))
	}
	for name, test := range map[string]struct {
		claims []*resourceapi.ResourceClaim
		pods   []*corev1.Pod
	}{
		"one":     {[]*resourceapi.ResourceClaim{claim(-1, 2, 1)}, []*corev1.Pod{waitingPod(refused)}},
		"a crowd": {claims, crowd},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, published("1", behind, behind), test.claims, test.pods, func(s *site) {
				time.Sleep(30 * time.Second)
				if s.waiting() == nil {
					t.Error("the node with room is told nothing")
				}
			}, many)
		})
	}
}

// fromTemplate is a pod whose claim was made of the same template as that of others.
func fromTemplate(name string) *corev1.Pod {
	pod := waitingPod(refused)
	pod.Name, pod.UID = name, types.UID("pod-"+name)
	pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: ptr.To("template")}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{
		{Name: "gpu", ResourceClaimName: ptr.To("of-" + name)}}
	return pod
}

func ofTemplate(pod string) *resourceapi.ResourceClaim {
	c := claim(-1, 2, 1)
	c.Name, c.UID = "of-"+pod, types.UID("of-"+pod)
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("pod-" + pod),
		Controller: ptr.To(true)}}
	return c
}

// That one pod finds no room says nothing of one that tolerates what the first does not.
func TestPodsThatTolerateMoreAreNotAlike(t *testing.T) {
	first, second := fromTemplate("a"), fromTemplate("b")
	second.Spec.Tolerations = tolerating("team").Spec.Tolerations
	run(t, published("1", behind, behind), []*resourceapi.ResourceClaim{ofTemplate("a"), ofTemplate("b")},
		[]*corev1.Pod{first, second}, func(s *site) {
			time.Sleep(5 * time.Second)
			if s.waiting() == nil {
				t.Error("the node is told nothing of the pod that tolerates its taint")
			}
		}, changed(tainted("team", corev1.TaintEffectNoSchedule)))
}

// What does not help a pod is tried less and less often.
func TestPodsThatWaitInVainAreLookedAtSeldom(t *testing.T) {
	cpus := claim(-1)
	cpus.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "cpus",
		FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "near", DeviceClassName: legacy.ClassCPUs, Count: 8}}}}
	for name, test := range map[string]struct {
		claim        *resourceapi.ResourceClaim
		looks, tells int
	}{
		// Others may have taken what the node let go.
		"a node was told": {claim(-1, 2, 1), 15, 15},
		"for CPUs only":   {cpus, 15, 0},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, published("1", behind, behind), []*resourceapi.ResourceClaim{test.claim}, []*corev1.Pod{waitingPod(refused)},
				func(s *site) {
					time.Sleep(10 * time.Minute)
					looks, tells := s.did("get", "resourceclaims"), s.did("patch", "nodes")
					if looks > test.looks || tells > test.tells {
						t.Errorf("%d looks in ten minutes, and nodes told %d times; want %d and %d at most", looks, tells,
							test.looks, test.tells)
					}
				})
		})
	}
}

// did counts what was done at the API server.
func (s *site) did(verb, resource string) (n int) {
	s.Helper()
	synctest.Wait()
	for _, action := range s.client.Actions() {
		if action.Matches(verb, resource) {
			n++
		}
	}
	return n
}

// A crowd of pods of a template is looked at as one. Nodes are told of the next soon when the first waits no more.
func TestACrowd(t *testing.T) {
	var crowd []*corev1.Pod
	var claims []*resourceapi.ResourceClaim
	for i := range 100 {
		name := fmt.Sprintf("p%02d", i)
		crowd, claims = append(crowd, fromTemplate(name)), append(claims, ofTemplate(name))
	}
	run(t, published("1", behind, behind), claims, crowd, func(s *site) {
		s.told("at once", &placement.Waiting{Claim: "of-p00", GiB: 3, Shares: 2})
		time.Sleep(5 * time.Minute)
		if looks := s.did("get", "resourceclaims"); looks > 10 {
			t.Errorf("%d looks at a crowd in five minutes", looks)
		}
		apitest.Delete[*corev1.Pod](s, s.client, "ns", "p00")
		s.told("soon", &placement.Waiting{Claim: "of-p01", GiB: 3, Shares: 2})
	})
}

// Pods that wait for different things have their turns at a node.
func TestPodsHaveTheirTurns(t *testing.T) {
	const pods = 4
	var claims []*resourceapi.ResourceClaim
	var waiting []*corev1.Pod
	for i := range pods {
		c, pod := claim(-1, 2, 1+i), waitingPod(refused)
		c.Name, c.UID = fmt.Sprint("c", i), types.UID(fmt.Sprint("claim", i))
		pod.Name, pod.UID = fmt.Sprint("p", i), types.UID(fmt.Sprint("pod", i))
		pod.Spec.ResourceClaims[0].ResourceClaimName = &c.Name
		claims, waiting = append(claims, c), append(waiting, pod)
	}
	run(t, published("1", behind, behind), claims, waiting, func(s *site) {
		seen := map[string]bool{}
		for range 5 * pods {
			time.Sleep(time.Second)
			if told := s.waiting(); told != nil {
				seen[told.Claim] = true
			}
		}
		if len(seen) != pods {
			t.Errorf("the node was told of %v, want all %d", seen, pods)
		}
	})
}

// A node can have several slices: those of shares, and others, as of whole GPUs or of instances of one in MIG mode.
// These come and go, and shares are spread as before; until there are none.
func TestANodeWithSeveralSlices(t *testing.T) {
	want := &placement.Waiting{Claim: "claim", GiB: 3, Shares: 2}
	other := func() *resourceapi.ResourceSlice {
		s := published("1")
		s.Name, s.Spec.Devices = "more-of-n", []resourceapi.Device{s.Spec.Devices[0]}
		s.Spec.Devices[0].Name = "gpu-9-share"
		return s
	}
	appears := func(s *site) { apitest.Create(s, s.client, other()) }
	goes := func(name string) func(*site) {
		return func(s *site) { apitest.Delete[*resourceapi.ResourceSlice](s, s.client, "", name) }
	}
	for name, test := range map[string]struct {
		before, after func(*site)
		want          *placement.Waiting
	}{
		"another is deleted": {appears, goes("more-of-n"), want},
		"another comes and goes": {nil, func(s *site) {
			appears(s)
			time.Sleep(time.Second)
			goes("more-of-n")(s)
		}, want},
		"that of shares is deleted": {nil, goes("of-n"), nil},
		"shares are spread no more": {nil, func(s *site) { apitest.Update(s, s.client, published("2")) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var options []func(*site)
			if test.before != nil {
				options = append(options, test.before)
			}
			run(t, published("1", behind, behind), []*resourceapi.ResourceClaim{claim(-1, 2, 1)}, nil, func(s *site) {
				time.Sleep(time.Minute)
				test.after(s)
				time.Sleep(time.Minute)
				apitest.Create(s, s.client, waitingPod(refused))
				s.told("at once", test.want)
			}, options...)
		})
	}
}
