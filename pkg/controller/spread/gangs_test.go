// SPDX-License-Identifier: Apache-2.0

package spread_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// member is a pod of a gang that waits, with a claim that claimOf makes.
func member(name, least string) *corev1.Pod {
	pod := waitingPod("pod group is unschedulable, minCount (3) cannot be satisfied")
	pod.Name, pod.UID = name, types.UID(name)
	pod.Labels = map[string]string{ack.LabelPodGroup: "gang", ack.LabelMinAvailable: least}
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
	pod.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("of-" + name)
	return pod
}

func claimOf(name string, gib ...int) *resourceapi.ResourceClaim {
	c := claim(-1, gib...)
	c.Name, c.UID = "of-"+name, types.UID("of-"+name)
	return c
}

// The pods of a gang are placed together, so a node that offers one share of each GPU after
// the other would never have room for more of them than GPUs.
func TestAGangTakesSeveralSharesOfAGPU(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	for _, test := range []struct {
		pods  int
		least string
		want  *placement.Waiting
	}{
		{3, "3", &placement.Waiting{Claim: "of-a", GiB: 14, Shares: 2}},
		{5, "4", &placement.Waiting{Claim: "of-a", GiB: 14, Shares: 2}},
		{5, "5", nil},
	} {
		var claims []*resourceapi.ResourceClaim
		var pods []*corev1.Pod
		for _, name := range names[:test.pods] {
			claims, pods = append(claims, claimOf(name, 7)), append(pods, member(name, test.least))
		}
		run(t, published("1", behind, behind), claims, pods, func(s *site) {
			s.told(test.least+" of them", test.want)
		})
	}
}

// Pods of a gang that have a node count: the further ones need not have room all at once.
func TestFurtherPodsOfAGangThatIsPlaced(t *testing.T) {
	placed := func(name string, change ...func(*corev1.Pod)) *corev1.Pod {
		pod := member(name, "2")
		pod.Spec.NodeName, pod.Spec.ResourceClaims, pod.Status.Phase = "n", nil, corev1.PodRunning
		for _, c := range change {
			c(pod)
		}
		return pod
	}
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Now()), []string{"a/b"} }
	alone := func(p *corev1.Pod) { p.Spec.SchedulingGroup = nil }
	for name, test := range map[string]struct {
		others []*corev1.Pod
		told   bool
	}{
		"both":          {[]*corev1.Pod{placed("x"), placed("y")}, true},
		"more than two": {[]*corev1.Pod{placed("x"), placed("y"), placed("z")}, true},
		"none":          {nil, false},
		"do not count":  {[]*corev1.Pod{placed("x", ended), placed("y", leaving), placed("z", alone)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			// There is room for one of them.
			claims := []*resourceapi.ResourceClaim{claimOf("a", 2, 1), claimOf("b", 10, 10)}
			pods := append(test.others, member("a", "2"), member("b", "2"))
			run(t, published("1", behind, behind), claims, pods, func(s *site) {
				time.Sleep(5 * time.Second)
				if got := s.waiting(); (got != nil) != test.told {
					t.Errorf("the node is told %+v, want something: %v", got, test.told)
				}
			})
		})
	}
}

// That a gang finds no room for as many pods as it needs says nothing of one pod of their template.
func TestAGangWithoutRoomIsNotLikeOnePod(t *testing.T) {
	var claims []*resourceapi.ResourceClaim
	var pods []*corev1.Pod
	for _, name := range []string{"a", "b", "c", "z"} {
		pod := fromTemplate(name)
		if name != "z" {
			pod.Labels, pod.Spec.SchedulingGroup = member(name, "3").Labels, member(name, "3").Spec.SchedulingGroup
		}
		c := ofTemplate(name)
		c.Spec = claim(-1, 7, 5).Spec
		claims, pods = append(claims, c), append(pods, pod)
	}
	run(t, published("1", behind, behind), claims, pods, func(s *site) {
		time.Sleep(5 * time.Second)
		if got := s.waiting(); got == nil || got.Claim != "of-z" {
			t.Errorf("the node is told %+v, want of the single pod", got)
		}
	})
}
