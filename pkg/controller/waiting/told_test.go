// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// A namespace with thousands that wait leaves the others their Events.
func TestNamespacesAreToldOfSoManyPods(t *testing.T) {
	run(t, func(s *site) {
		for i := range 150 {
			p := asking(refused, "nvidia.com/gpu=1")
			p.Name, p.UID = fmt.Sprintf("p%d", i), types.UID(fmt.Sprintf("u%d", i))
			_, err := s.client.CoreV1().Pods("ns").Create(s.Context(), p, metav1.CreateOptions{})
			expect.NoError(s, err)
		}
		other := asking(refused, "nvidia.com/gpu=1")
		other.Namespace, other.Name, other.UID = "other", "last", "last"
		apitest.Create(s, s.client, other)
		time.Sleep(time.Minute)
		synctest.Wait()
		expect.Equal(s, 101, len(s.recorder.Events), "Events, 100 of the one namespace and 1 of the other")
	})
}

// Several GPUs cannot be had where MPS limits shares, however much is free.
func TestPodsForSeveralGPUsAreToldOfMPS(t *testing.T) {
	const oneGPUEach = "The pod asks for shares of several GPUs (label aliyun.com/gpu-count), and with MPS a process " +
		"can use one GPU"
	for name, test := range map[string]struct {
		template, isolation, want string
		toldOfMPS                 bool
	}{
		"with MPS": {"gpushare.mem-x2.gpu.6", "mps", `no GPU matches the selector ` +
			`device.attributes["gpu.aliyun.com"].?isolation.orValue("mps") != "mps"`, true},
		"of two containers":   {"gpushare.mem-x2.gpu.6.other.2", "mps", `no GPU matches the selector`, true},
		"more than is there":  {"gpushare.mem-x4.gpu.8", "mps", `no GPU matches the selector`, false},
		"with something else": {"gpushare.mem-x2.gpu.6", "cgpu", "all taken or too full", false},
		"of two with others": {"gpushare.mem-x2.gpu.6.other.2", "cgpu", warning + "request gpu-card0: the GPUs that " +
			"match are all taken or too full", false},
		"one of two": {"gpushare.mem.gpu.6.other.2", "mps", warning + "request gpu: the GPUs that match are all " +
			"taken or too full", false},
		"too much of the rest": {"gpushare.mem-x2.gpu.60", "cgpu", "the largest GPU that matches has 22Gi", false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				two := sliceOf(devices.Options{Mode: mode.CGPU, Isolation: test.isolation}, 23028, 23028)
				apitest.Update(s, s.client, two)
				s.hold(two)
				s.create(claimOf(t, test.template), pod(refused))
				time.Sleep(time.Minute)
				synctest.Wait()
				got := <-s.recorder.Events
				if !strings.Contains(got, test.want) || strings.Contains(got, oneGPUEach) != test.toldOfMPS ||
					strings.Contains(got, "On ACK") == test.toldOfMPS {
					s.Errorf("Event %q, want %q, of MPS %t, else the words of ACK", got, test.want, test.toldOfMPS)
				}
			})
		})
	}
}

func TestWhoIsNotTold(t *testing.T) {
	allocated := claim("90Gi")
	allocated.Status.Allocation = &resourceapi.AllocationResult{}
	for name, test := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		change func(p *corev1.Pod)
	}{
		"who was not looked at by the scheduler": {claim("90Gi"), func(p *corev1.Pod) { p.Status.Conditions = nil }},
		"who is at a gate": {claim("90Gi"), func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
			p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated
		}},
		"who is being deleted": {claim("90Gi"),
			func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }},
		"who has a node":           {claim("90Gi"), func(p *corev1.Pod) { p.Spec.NodeName = "n1" }},
		"whose claim is allocated": {allocated, func(*corev1.Pod) {}},
		"whose claim is not there": {claim("90Gi"),
			func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("other") }},
		"whose claim is not made yet": {claim("90Gi"), func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}
		}},
		"who could have GPUs and waits for something else": {claim("1Gi"),
			func(p *corev1.Pod) { p.Status.Conditions[0].Message = "0/1 nodes are available: 1 Insufficient cpu." }},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				p := pod(refused)
				test.change(p)
				s.create(test.claim, p)
				time.Sleep(time.Hour)
				s.told("in an hour")
			})
		})
	}
}

// A scheduler that does not run says nothing of the pods that name it, and no other one looks at them.
func TestPodsOfASchedulerThatSaysNothing(t *testing.T) {
	const unseen = warning + "the scheduler volcano, which the pod names, has not reported on it: if it does not run, " +
		"create the pod without schedulerName"
	for name, test := range map[string]struct {
		change func(p *corev1.Pod)
		want   []string
	}{
		"as on ACK": {func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelLegacy: "true"} },
			[]string{unseen}},
		"as for Volcano": {func(p *corev1.Pod) {
			p.Spec.Containers = asking("", "volcano.sh/vgpu-memory=1024").Spec.Containers
		}, []string{unseen + ". container main asks for volcano.sh/vgpu-memory, which no node serves. Write " +
			"these limits instead: aliyun.com/gpu-mem: 1 (GiB). docs/legacy.md lists the requests that are served. With " +
			"the option other-manifests, the API server converts volcano.sh/vgpu-memory of container main when it creates " +
			"the pod: docs/other-manifests.md"}},
		"as for KAI": {func(p *corev1.Pod) { p.Annotations = map[string]string{"gpu-memory": "1024"} },
			[]string{unseen + ". the annotation gpu-memory asks KAI's scheduler for a part of a GPU, and no other reads it. " +
				"Write these limits instead: aliyun.com/gpu-mem: 1 (GiB). docs/legacy.md lists the requests that are served"}},
		"in a gang of Volcano's": {func(p *corev1.Pod) {
			p.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
			p.Annotations = map[string]string{"scheduling.k8s.io/group-name": "g"}
		}, nil},
		"without GPUs": {func(*corev1.Pod) {}, nil},
		"of which it says something": {func(p *corev1.Pod) {
			p.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				p := pod("")
				p.Spec.SchedulerName, p.Status.Conditions = "volcano", nil
				p.CreationTimestamp = metav1.Now()
				test.change(p)
				s.create(claim("1Gi"), p)
				time.Sleep(59 * time.Second)
				s.told("in the first minute")
				time.Sleep(2 * time.Second)
				s.told("after it", test.want...)
			})
		})
	}
}

func TestMessageFitsAnEvent(t *testing.T) {
	run(t, func(s *site) {
		long := claim("1Gi")
		first := long.Spec.Devices.Requests[0]
		long.Spec.Devices.Requests = nil
		for _, name := range strings.Split("abcdefghijklmnop", "") {
			r := *first.DeepCopy()
			r.Name, r.Exactly.Capacity.Requests[v1alpha1.CapMemory] = name, resource.MustParse("90Gi")
			long.Spec.Devices.Requests = append(long.Spec.Devices.Requests, r)
		}
		s.create(long, pod(refused))
		time.Sleep(time.Minute)
		synctest.Wait()
		got := strings.TrimPrefix(<-s.recorder.Events, warning)
		if len(got) > 1024 || !strings.HasSuffix(got, " bytes more)") {
			s.Errorf("message of %d bytes: %q", len(got), got)
		}
	})
}

// failing is a claim whose selector cannot be evaluated.
func failing() *resourceapi.ResourceClaim {
	c := claim("1Gi")
	c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.attributes["gpu.aliyun.com"].cards == 1`}}}
	return c
}

// A selector that fails on a node alone that takes no pods keeps nobody from the others, for as long as it is so.
func TestSelectorThatFailsOnAClosedNodeIsNotToBlame(t *testing.T) {
	dedicated := corev1.Taint{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}
	for name, closes := range map[string]func(*corev1.NodeSpec, bool){
		"a cordon": func(spec *corev1.NodeSpec, is bool) { spec.Unschedulable = is },
		"a taint": func(spec *corev1.NodeSpec, is bool) {
			if spec.Taints = nil; is {
				spec.Taints = []corev1.Taint{dedicated}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.create(failing(), pod(refused))
				time.Sleep(time.Minute)
				const selector = `request gpu: %s selector device.attributes["gpu.aliyun.com"].cards == 1`
				fails := warning + fmt.Sprintf(selector, "the") + " cannot be evaluated for device gpu-0-share of node n1 " +
					"(no such key: cards), so no node can take the pod"
				s.told("while the node takes pods", fails)
				s.changeNode(func(spec *corev1.NodeSpec) { closes(spec, true) })
				time.Sleep(time.Minute)
				s.told("when it takes none", warning+never+fmt.Sprintf(selector, "no GPU matches the")+
					"; class share.gpu.aliyun.com has 1 GPU")
				s.changeNode(func(spec *corev1.NodeSpec) { closes(spec, false) })
				time.Sleep(time.Minute)
				s.told("when it takes some again", fails)
			})
		})
	}
}

// Nodes open and close to pods all the time, which matters only where a selector fails: no pod is looked at for it.
func TestNodesThatOpenAndCloseHaveNoPodLookedAt(t *testing.T) {
	for name, change := range map[string]func(*corev1.NodeSpec){
		"a cordon": func(spec *corev1.NodeSpec) { spec.Unschedulable = true },
		"a taint": func(spec *corev1.NodeSpec) {
			spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoExecute}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.create(claim("90Gi"), pod(refused))
				time.Sleep(time.Minute)
				synctest.Wait()
				s.client.ClearActions()
				s.changeNode(change)
				time.Sleep(time.Minute)
				synctest.Wait()
				for _, action := range s.client.Actions() {
					if action.Matches("get", "resourceclaims") {
						t.Error("the pod was looked at")
					}
				}
			})
		})
	}
}

// Nothing else happens in the cluster that would have the pod looked at again.
func TestStaleLabelOfANodeSilencesNobodyForLong(t *testing.T) {
	run(t, func(s *site) {
		s.create(claim("90Gi"), pod(refused))
		time.Sleep(time.Minute)
		s.told("while the node may come back", warning+strings.TrimPrefix(tooMuch, never))
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		last := ""
		for len(s.recorder.Events) > 0 {
			last = <-s.recorder.Events
		}
		expect.Equal(s, warning+tooMuch, last, "later")
	}, nodeOf("gone", map[string]string{"aliyun.accelerator/nvidia_name": "Tesla-T4"}))
}

func TestPodThatGoesMeanwhileIsNotExplained(t *testing.T) {
	run(t, func(s *site) {
		var once sync.Once
		apitest.Answer(s.client, "get", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
			once.Do(func() {
				expect.Error(s, s.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "ns", "p"))
				time.Sleep(time.Second)
			})
			return false, nil, nil
		})
		s.create(claim("90Gi"), pod(refused))
		time.Sleep(time.Hour)
		s.told("in an hour")
	})
}

// A share that has to be all of a GPU, and is not: the selector that says so is the driver's, not the pod's author's.
func TestPodsThatAskForAllOfAGPUAreTold(t *testing.T) {
	run(t, func(s *site) {
		whole := pod(refused)
		whole.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpushare",
			ResourceClaimTemplateName: ptr.To("gpushare.mem-whole.main.3")}}
		whole.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpushare",
			ResourceClaimName: ptr.To("c")}}
		c := claim("3Gi")
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: whole.Name, UID: whole.UID,
			Controller: ptr.To(true)}}
		c.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.attributes["gpu.aliyun.com"].memoryMiB == 3072`}}}
		s.create(c, whole)
		time.Sleep(time.Minute)
		s.told("after a while", warning+never+`request gpu: no GPU matches the selector `+
			`device.attributes["gpu.aliyun.com"].memoryMiB == 3072; class share.gpu.aliyun.com has 1 GPU, with `+
			`memoryMiB 23028. By its label ack.gpushare.placement=require-whole-device, the pod asks for a GPU that has `+
			`exactly its amounts: write those of a whole GPU, or remove the label`)
	})
}

// A pod that waits for the node to which it is pinned is told what helps. It does not help that a DaemonSet's goes.
func TestPinnedPodsAreToldWhatHelps(t *testing.T) {
	const advice = "The pod is pinned to node n9. Delete it: a new pod can use another node"
	for name, test := range map[string]struct {
		pinned bool
		owner  string
		want   bool
	}{
		"pinned":         {true, "ReplicaSet", true},
		"of a DaemonSet": {true, "DaemonSet", false},
		"not pinned":     {false, "ReplicaSet", false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				p := pod(refused)
				p.OwnerReferences = []metav1.OwnerReference{{Kind: test.owner, Name: "owner", Controller: ptr.To(true)}}
				if test.pinned {
					p.Spec.Affinity = scheduling.PinnedTo("n9", nil)
				}
				s.create(claim("90Gi"), p)
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := <-s.recorder.Events; strings.Contains(got, advice) != test.want {
					s.Errorf("Event %q, want the advice in it: %t", got, test.want)
				}
			})
		})
	}
}
