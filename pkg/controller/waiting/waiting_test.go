// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
)

const (
	whole = "exclusive.gpu.aliyun.com"
	share = "share.gpu.aliyun.com"
)

// A single GPU goes to the node that has one left, so that pods for two find some.
func TestBestNodeIsNominated(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.holds("b", "old", "gpu-0")
		s.waits("two", claimOf(whole, "", 2))
		synctest.Wait()
		s.waits("one", claimOf(whole, "", 1))
		s.nominated("with one GPU left on b", "one", "b")
	}, "a", "b", "c")
}

// A pod's label chooses its node before the setting does.
func TestNodePlacement(t *testing.T) {
	for _, tc := range []struct {
		setting     score.Setting
		label, want string
	}{
		{score.Best, "", "fuller"},
		{score.Best, "spread", "empty"},
		{score.Binpack, "", "fuller"},
		{score.Binpack, "spread", "empty"},
		{score.Spread, "", "empty"},
		{score.Spread, "binpack", "fuller"},
		{score.Spread, "best", "fuller"},
		{score.Spread, "any", ""},
		{score.Binpack, "pack", ""},
	} {
		t.Run(string(tc.setting)+" and "+tc.label, func(t *testing.T) {
			run(t, mode.Exclusive, func(s *site) {
				s.stop()
				s.placement = tc.setting
				s.holds("fuller", "old", "gpu-0")
				s.start()
				s.waits("p", claimOf(whole, "", 1), func(p *corev1.Pod) {
					if tc.label != "" {
						p.Labels = map[string]string{v1alpha1.LabelNodePlacement: tc.label}
					}
				})
				s.nominated("in a cluster with a fuller and an empty node", "p", tc.want)
			}, "empty", "fuller")
		})
	}
}

// A pod that was evicted for a node is nominated to it, if it has room there, and to the best one else.
func TestPlannedNodeIsNominated(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.stop()
		s.planned = func(pod *corev1.Pod) string {
			return map[string]string{"moved": "empty", "late": "full"}[pod.Name]
		}
		s.holds("fuller", "old", "gpu-0")
		s.holds("full", "others", "gpu-0", "gpu-1")
		s.start()
		s.waits("late", claimOf(whole, "", 1))
		s.nominated("where there is no room on the planned node", "late", "fuller")
		s.waits("moved", claimOf(whole, "", 1))
		s.nominated("as it was planned", "moved", "empty")
	}, "empty", "full", "fuller")
}

// After a restart pods that run tell what is asked for: here pods for two GPUs, which a single one leaves their room.
func TestWhatRunsIsLearned(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.stop()
		s.holds("a", "two", "gpu-0", "gpu-1")
		s.holds("b", "one", "gpu-0")
		s.start()
		s.waits("p", claimOf(whole, "", 1))
		s.nominated("beside the single one", "p", "b")
	}, "a", "b", "c")
}

// What was nominated counts before the scheduler has placed it.
func TestNominationsCountAtOnce(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.holds("a", "old", "gpu-0")
		counts := map[string]int{}
		for _, pod := range []string{"p", "q", "r", "none"} {
			s.waits(pod, claimOf(whole, "", 1))
			counts[s.nominationOf(pod)]++
		}
		if counts["a"] != 1 || counts["b"] != 2 || counts[""] != 1 {
			t.Fatalf("pods by node %v, with one GPU left on a and two on b", counts)
		}
		// The first pod ends: its GPU is free again.
		was := s.nominationOf("p")
		apitest.Delete[*corev1.Pod](t, s.client, "ns", "p")
		time.Sleep(3 * time.Second)
		s.nominated("when one is gone", "none", was)
	}, "a", "b")
}

// The cache may show a pod's node some time before the Nominator is told: all pods may be looked at again in between.
func TestOutcomeOfAPodThatIsToldLate(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("p", claimOf(whole, "", 1))
		s.nominated("at first", "p", "a")
		pod, err := s.client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		expect.NoError(t, err)
		pod.Spec.NodeName = "a"
		expect.NoError(t, s.nominator.starting.Put(pod))
		expect.NoError(t, s.nominator.lookAtAll(t.Context()))
		s.nominator.bound(pod)
		expect.Equal(t, map[Outcome]int{Right: 1}, s.outcomes, "outcomes")
	}, "a")
}

// A pod has one GPU with 12 CPUs: 4 more are left beside the other GPU of its node, 16 beside the two of b.
func TestStrandedGPUsAreTold(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("p", claimOf(whole, "", 1), func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("12")
		})
		s.takes("p", "a", "p", "gpu-0")
		synctest.Wait()
		want := map[string]float64{"a": 2.0 / 3, "b": 2.0 / 3}
		expect.Equal(t, fmt.Sprintf("%.9v", want), fmt.Sprintf("%.9v", s.nominator.Stranded()), "stranded")
	}, "a", "b")
}

// A share is nominated as a whole GPU is, by templates as by claims.
func TestSharesOfTemplates(t *testing.T) {
	run(t, mode.Share, func(s *site) {
		apitest.Create(s, s.client, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "t"},
			Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: claimOf(share, "20Gi", 1)}})
		byTemplate := func(name string) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To(name)}}
			}
		}
		s.waits("p", claimOf(share, "1Gi", 1), byTemplate("t"), func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"on": "b"}
		})
		s.nominated("where its nodeSelector has it", "p", "b")
		// A legacy pod's template says what it asks for before it is there.
		s.waits("old", claimOf(share, "1Gi", 1), byTemplate("gpushare.mem.main.2"))
		s.nominated("before the template is made", "old", "b")
	}, "a", "b")
}

func TestPodsThatAreLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"at a gate":             func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} },
		"of another scheduler":  func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" },
		"on a node":             func(p *corev1.Pod) { p.Spec.NodeName = "a" },
		"without GPUs":          func(p *corev1.Pod) { p.Spec.ResourceClaims = nil },
		"whose claim is absent": func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("other") },
		"whose node is chosen": func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"on": "nowhere"}
		},
		"of a gang": func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
		},
		"being deleted": func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) },
		"that prefers a node": func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}}}}
		},
		"that is spread": func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: corev1.LabelHostname}}
		},
		"with too much CPU": func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = amounts("17", "1Gi", "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, mode.Exclusive, func(s *site) {
				s.waits("p", claimOf(whole, "", 1), change)
				time.Sleep(time.Minute)
				s.nominated("in a minute", "p", "")
			}, "a")
		})
	}
}

// Who was nominated by somebody else stays so, and counts there.
func TestNominationsOfOthers(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("theirs", claimOf(whole, "", 2), func(p *corev1.Pod) { p.Status.NominatedNodeName = "a" })
		synctest.Wait()
		s.waits("p", claimOf(whole, "", 1))
		s.nominated("beside theirs", "p", "b")
		s.nominated("afterwards", "theirs", "a")
	}, "a", "b")
}

// A node that was taken by somebody else is nominated no more: the autoscaler would believe it.
func TestWrongNominationsAreTakenBack(t *testing.T) {
	for _, other := range []string{"", "b"} {
		nodes := []string{"a"}
		if other != "" {
			nodes = append(nodes, other)
		}
		run(t, mode.Exclusive, func(s *site) {
			if other != "" {
				s.holds(other, "for-a-while", "gpu-0", "gpu-1")
			}
			s.waits("p", claimOf(whole, "", 2))
			s.nominated("at first", "p", "a")
			s.holds("a", "thief", "gpu-1")
			s.nominated("before the scheduler looked", "p", "a")
			if other != "" {
				apitest.Delete[*resourceapi.ResourceClaim](t, s.client, "ns", "for-a-while")
			}
			s.change("p", refused)
			time.Sleep(3 * time.Second)
			s.nominated("when the scheduler refused it", "p", other)
		}, nodes...)
	}
}

// The scheduler clears a nomination where it finds no room for something that is not looked at here.
func TestNominationsThatTheSchedulerClears(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("p", claimOf(whole, "", 1))
		s.nominated("at first", "p", "a")
		s.change("p", func(p *corev1.Pod) { refused(p); p.Status.NominatedNodeName = "" })
		s.nominated("at once", "p", "")
		time.Sleep(5 * time.Second)
		s.nominated("after a while", "p", "a")
		s.change("p", func(p *corev1.Pod) { p.Status.NominatedNodeName = "" })
		time.Sleep(3 * time.Second)
		s.nominated("the next time not so soon", "p", "")
	}, "a")
}

// The next leader goes on where the last one ended.
func TestNextLeader(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.waits("p", claimOf(whole, "", 2))
		s.nominated("by the first", "p", "a")
		s.stop()
		s.start()
		time.Sleep(time.Minute)
		s.waits("q", claimOf(whole, "", 1))
		s.nominated("beside what is promised", "q", "")
		s.change("p", refused)
		s.holds("a", "thief", "gpu-1")
		time.Sleep(3 * time.Second)
		s.nominated("when it is wrong", "p", "")
	}, "a")
}

// slowClaims are claims that nobody can read for a minute.
type slowClaims struct{ Client }

func (c slowClaims) ResourceClaims(namespace string) typedresourcev1.ResourceClaimInterface {
	time.Sleep(time.Minute)
	return c.Client.ResourceClaims(namespace)
}

// A pod is nominated at once however long it takes to explain to others why they wait.
func TestNominationsDoNotWaitForExplanations(t *testing.T) {
	run(t, mode.Exclusive, func(s *site) {
		s.stop()
		s.reads = slowClaims{s.client.ResourceV1()}
		s.start()
		for _, name := range []string{"x", "y", "z"} {
			s.waits(name, claimOf(whole, "", 9), refused)
		}
		time.Sleep(patience + time.Second)
		s.waits("p", claimOf(whole, "", 1))
		s.nominated("while others are explained", "p", "a")
	}, "a")
}
