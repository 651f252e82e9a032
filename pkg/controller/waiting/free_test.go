// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting"
)

// hold has a claim that has all of the GPUs of a slice.
func (s *site) hold(published *resourceapi.ResourceSlice) {
	s.Helper()
	held := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "held"}}
	held.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range published.Spec.Devices {
		result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: v1alpha1.DriverName,
			Pool: published.Spec.Pool.Name, Device: d.Name}
		if ptr.Deref(d.AllowMultipleAllocations, false) {
			result.ShareID = ptr.To(types.UID(fmt.Sprint("share-", i)))
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
			for name, capacity := range d.Capacity {
				result.ConsumedCapacity[name] = capacity.Value
			}
		}
		held.Status.Allocation.Devices.Results = append(held.Status.Allocation.Devices.Results, result)
	}
	apitest.Create(s, s.client, held)
}

const (
	full = warning + "request gpu: the GPUs that match are all taken or too full: 1 GPU on node n1"
	// zero comes after full.
	zero     = ". Nearest: node n1 (memory: asked 22Gi, largest free 0 on gpu-0)"
	yetWaits = warning + "the GPUs that the pod asks for are free on node n1, and it still waits. The pod needs " +
		"something else that the node lacks: the scheduler's Event says what"
)

// What the scheduler said a while ago does not make free GPUs full: it is about to place the
// pod, or somebody else takes them. If neither happens, something else keeps the pod from them.
func TestPodsWhoseGPUsStayFreeAreToldThatSomethingElseIsMissing(t *testing.T) {
	run(t, func(s *site) {
		s.create(claim("22Gi"), pod(refused))
		time.Sleep(time.Minute)
		s.told("while its GPU has just been found free")
		time.Sleep(time.Minute)
		s.told("when it stays free", yetWaits)
		time.Sleep(3 * time.Minute)
		s.told("while that holds")
		s.hold(slice(23028))
		time.Sleep(2 * time.Minute)
		s.told("when others have it", full+zero)
		apitest.Delete[*resourceapi.ResourceClaim](s, s.client, "other", "held")
		// The next look is RepeatAfter the last.
		time.Sleep(3*time.Minute + 30*time.Second)
		s.told("when it is free again")
		time.Sleep(time.Minute)
		s.told("when it stays free again", yetWaits)
	})
}

// A pod is told what its nearest node lacks as soon as there is time to look.
func TestPodsAreToldTheNearestOnceThereIsTimeToLook(t *testing.T) {
	run(t, func(s *site) {
		s.hold(slice(23028))
		s.slow.Store(int64(3 * time.Second))
		s.create(claim("22Gi"), pod(refused))
		time.Sleep(9 * time.Second)
		s.told("after a look that took too long")
		s.slow.Store(0)
		time.Sleep(20 * time.Second)
		s.told("when there is time", full+zero)
	})
}

func TestPodsAreToldWithoutTheNearestBeforeLong(t *testing.T) {
	run(t, func(s *site) {
		s.hold(slice(23028))
		s.slow.Store(int64(3 * time.Second))
		s.create(claim("22Gi"), pod(refused))
		time.Sleep(time.Minute)
		s.told("while looking takes too long", full)
		s.slow.Store(0)
		time.Sleep(2 * time.Minute)
		s.told("when there is time", full+zero)
		s.slow.Store(int64(3 * time.Second))
		apitest.Update(s, s.client, pod(refused+" And so on."))
		time.Sleep(time.Minute)
		s.told("when there is none again, and it has been told more")
	})
}

// netClass is the class of another driver, for NICs.
const netClass = "nic.example.com"

// nic is a request for a device of another driver.
var nic = resourceapi.DeviceRequest{Name: "nic", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: netClass,
	AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}

// In one claim a GPU and a NIC can be asked for that are near each other. What is not known of
// the NIC does not make the GPU free.
func TestPodsThatAskForDevicesOfOthersAreNotToldThatTakenGPUsAreFree(t *testing.T) {
	const others = ". It may be devices of other drivers that are missing, which the pod asks for, too"
	near := claim("22Gi")
	near.Spec.Devices.Requests = append(near.Spec.Devices.Requests, nic)
	near.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{"gpu", "nic"},
		MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("resource.kubernetes.io/pcieRoot"))}}
	apart := near.DeepCopy()
	apart.Name, apart.Spec.Devices = "nic", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{nic}}
	for name, test := range map[string]struct {
		held   bool
		claims []*resourceapi.ResourceClaim
		want   string
	}{
		"in one claim":               {true, []*resourceapi.ResourceClaim{near}, full + others},
		"in one claim, the GPU free": {false, []*resourceapi.ResourceClaim{near}, full + others},
		"in two claims": {true, []*resourceapi.ResourceClaim{claim("22Gi"), apart},
			strings.Replace(full+zero, "request gpu", "claim c, request gpu", 1)},
		"in two claims, the GPU free": {false, []*resourceapi.ResourceClaim{claim("22Gi"), apart}, warning +
			"the GPUs that the pod asks for are free on node n1" + others},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				apitest.Create(s, s.client, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: netClass}})
				if test.held {
					s.hold(slice(23028))
				}
				p := pod(refused)
				for _, more := range test.claims[1:] {
					p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: more.Name,
						ResourceClaimName: ptr.To(more.Name)})
					apitest.Create(s, s.client, more)
				}
				s.create(test.claims[0], p)
				time.Sleep(time.Minute)
				s.told("after a while", test.want)
			})
		})
	}
}

func TestPodsAreToldOfNodesThatAreClosedToThem(t *testing.T) {
	dedicated := corev1.Taint{Key: "dedicated", Value: "a", Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		tolerations []corev1.Toleration
		want        []string
	}{
		"without a toleration": {nil, []string{warning + "no node that the pod can be on has its GPUs free. Node n1 has " +
			"the GPUs free, but the pod does not tolerate its taint dedicated=a:NoSchedule"}},
		"with one": {[]corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.changeNode(func(spec *corev1.NodeSpec) { spec.Taints = []corev1.Taint{dedicated} })
				p := pod(refused)
				p.Spec.Tolerations = test.tolerations
				s.create(claim("22Gi"), p)
				time.Sleep(time.Minute)
				s.told("after a while", test.want...)
			})
		})
	}
}

// What is free on nodes that the pod itself excludes is nothing to it.
func TestPodsAreNotToldOfNodesThatTheyExclude(t *testing.T) {
	run(t, func(s *site) {
		other := slice(23028)
		other.Name, other.ResourceVersion, other.Spec.NodeName = "other", "other", ptr.To("n2")
		other.Spec.Pool.Name = v1alpha1.PoolName("n2")
		apitest.Create(s, s.client, other)
		s.hold(slice(23028))
		p := pod(refused)
		p.Spec.NodeSelector = map[string]string{"on": "n1"}
		s.create(claim("22Gi"), p)
		time.Sleep(time.Minute)
		s.told("after a while", warning+"request gpu: the GPUs that match are all taken or too full: 1 GPU on node n1. "+
			"Nearest: node n1 (memory: asked 22Gi, largest free 0 on gpu-0)")
	}, nodeOf("n2", map[string]string{"on": "n2"}))
}

// One pod of a gang whose own GPUs are free, and which waits for the others, is told for all, and another when that one
// is gone.
func TestOnePodOfAGangIsTold(t *testing.T) {
	run(t, func(s *site) {
		const waits = "the GPUs that the pod asks for are free on node n1, but its gang (PodGroup train) is placed " +
			"only when enough of its pods find room at once: kubectl inspect cgpu explain pod/"
		member := func(name string) *corev1.Pod {
			p := pod(refused)
			p.Name, p.UID = name, types.UID(name)
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("train")}
			return p
		}
		s.create(claim("22Gi"), member("p"))
		for _, name := range []string{"q", "r"} {
			// One after the other.
			time.Sleep(time.Second)
			apitest.Create(s, s.client, member(name))
		}
		time.Sleep(time.Minute)
		s.told("after a while", warning+waits+"p reports whether they do")
		apitest.Delete[*corev1.Pod](s, s.client, "ns", "p")
		time.Sleep(waiting.RepeatAfter)
		s.told("when the first is gone", warning+waits+"q reports whether they do")
		time.Sleep(time.Minute)
		s.told("later")
	})
}
