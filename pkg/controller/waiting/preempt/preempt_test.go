// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

func TestOneGoesForOneOfHigherPriority(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9), 1)
		// It is patient, and looks twice.
		s.after(9 * time.Second)
		s.after(3*time.Second, "b")
		s.told("Normal GPUPreempting 1 pod of lower priority is evicted from node n1",
			"Warning GPUPreempted The pod was evicted to free GPUs of node n1 for pod p, whose priority is 9; this pod's is 4")
		s.change("b", terminating(time.Now().Add(30*time.Second)))
		s.after(time.Minute, "b")
		s.gone("b")
		s.after(10*time.Second, "b")
		s.change("p", func(pod *corev1.Pod) { pod.Spec.NodeName = "n1" })
		s.after(time.Hour, "b")
		s.told()
	})
}

func TestWhoIsNotHelped(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"preemptionPolicy Never": func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) },
		"a gang":                 inGroup,
		"a gang of another scheduler": func(pod *corev1.Pod) {
			pod.Spec.SchedulerName = "koord-scheduler"
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "gang.scheduling.koordinator.sh/name", "g")
		},
		"equal priority":         func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To(int32(4)) },
		"the scheduler preempts": func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n1" },
		"scheduling gate": func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
		},
		"it was not tried": func(pod *corev1.Pod) { pod.Status.Conditions = nil },
		"another reason":   on("n2"),
		"a host port": func(pod *corev1.Pod) {
			pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}}}
		},
		"a required spread": func(pod *corev1.Pod) {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.waits(podOf("p", 9), 1)
				s.change("p", change)
				s.after(time.Hour)
				s.told()
			})
		})
	}
}

// Where nodes lack CPUs beside GPUs, those go whose CPUs and GPUs are enough, whatever the scheduler says of it.
func TestCPUsOfAVictim(t *testing.T) {
	run(t, func(s *site) {
		s.change("b", cpus("6"))
		s.waits(podOf("p", 9, cpus("4")), 1)
		s.change("p", func(pod *corev1.Pod) {
			pod.Status.Conditions[0].Message = "0/1 nodes are available: 1 Insufficient cpu."
		})
		s.after(30*time.Second, "b")
	})
}

// One at a time on a node: what is freed is the first one's, and while it is not placed no
// others go.
func TestTheNextWaitsUntilTheFirstIsPlaced(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9), 1)
		s.waits(podOf("q", 8), 1)
		s.after(20*time.Second, "b")
		s.gone("b")
		s.after(10*time.Second, "b")
		s.change("p", func(pod *corev1.Pod) { pod.Spec.NodeName = "n1" })
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-gpu"}}
		claim.Status = resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r0", Driver: v1alpha1.DriverName,
					Pool: v1alpha1.PoolName("n1"), Device: "gpu-1"}}}},
		}
		apitest.Update(s, s.client, claim)
		s.after(time.Minute, "b", "a")
	})
}

// Who waits for victims on one node costs none on another.
func TestNobodyGoesOnASecondNode(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9), 1)
		s.after(20*time.Second, "b")
		s.change("b", terminating(time.Now().Add(30*time.Second)))
		s.after(90*time.Second, "b")
	}, "n2")
}

// What goes on on one node keeps nobody from another.
func TestPodsOnSeveralNodesGoAtOnce(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9), 1)
		s.waits(podOf("q", 8), 1)
		s.after(30*time.Second, "b", "n2")
	}, "n2")
}

// A leader that comes in the midst goes on where the last one stopped.
func TestRestartInTheMidst(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9), 2)
		s.after(12*time.Second, "a", "b")
		s.stop()
		// The last one came no further than this.
		s.evicted = s.evicted[:1]
		s.change("a", terminating(time.Now().Add(30*time.Second)))
		s.start()
		s.after(time.Minute, "a")
		s.gone("a")
		s.after(time.Minute, "a", "b")
		s.change("b", terminating(time.Now().Add(30*time.Second)))
		s.stop()
		s.start()
		s.after(30*time.Second, "a", "b")
		s.gone("b")
		s.after(time.Hour, "a", "b")
	})
}

// Others may take what was freed: then it is tried again, less and less often.
func TestWhoIsNotPlacedWaitsForTheNextTry(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9), 1)
		s.after(12*time.Second, "b")
		s.told("GPUPreempting", "GPUPreempted")
		// It is replaced at once.
		pod := podOf("b2", 4)
		pod.Spec.NodeName = "n1"
		withClaim(pod)
		claim := apitest.Get[*resourceapi.ResourceClaim](s, s.client, "ns", "b-gpu")
		s.gone("b")
		claim.Name, claim.ResourceVersion = "b2-gpu", ""
		claim.Status.ReservedFor[0].Name, claim.Status.ReservedFor[0].UID = "b2", "b2"
		apitest.Create[runtime.Object](s, s.client, pod, claim)
		s.after(40*time.Second, "b")
		s.told("Warning GPUNotPreempted Pods of lower priority were evicted from node n1, and the scheduler has not placed " +
			"this pod since they ended: others may have taken their GPUs. No others are evicted for 1m0s")
		s.after(50*time.Second, "b")
		s.after(20*time.Second, "b", "b2")
	})
}
