// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"errors"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// closes has a DeviceTaintRule taint devices of a pool.
func (s *site) closes(pool string) {
	s.Helper()
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "repair"}}
	rule.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: &pool}
	rule.Spec.Taint = resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	apitest.Create(s, s.client, rule)
}

// A GPU that a rule closes is not free.
func TestGPUsThatRulesCloseAreNotFree(t *testing.T) {
	run(t, func(s *site) {
		s.closes(v1alpha1.PoolName("n1"))
		s.create(claim("22Gi"), pod(refused))
		time.Sleep(3 * time.Minute)
		s.told("while the rule is there", warning+"the GPUs that the pod asks for take no new claims: DeviceTaintRules "+
			"close them. Nearest: node n1 (taint repair: gpu-0)")
		apitest.Delete[*resourceapi.DeviceTaintRule](s, s.client, "", "repair")
		time.Sleep(8 * time.Minute)
		s.told("when it is gone", yetWaits)
	})
	run(t, func(s *site) {
		s.closes(v1alpha1.PoolName("n2"))
		s.create(claim("22Gi"), pod(refused))
		time.Sleep(3 * time.Minute)
		s.told("while a rule is there for another node", yetWaits)
	})
}

// What the driver closes itself is not put down to rules, which nobody would find.
func TestGPUsThatTheDriverClosesAreNotPutDownToRules(t *testing.T) {
	sick := map[string][]resourceapi.DeviceTaint{"GPU-0": {{Key: v1alpha1.TaintUnhealthy,
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	all := claim("1Gi")
	all.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	all.Spec.Devices.Requests[0].Exactly.Count = 0
	const closedNow = "the GPUs that the pod asks for take no new claims at the moment"
	cordoned := nodeOf("n2", nil)
	cordoned.Spec.Unschedulable = true
	for name, test := range map[string]struct {
		claim *resourceapi.ResourceClaim
		gpus  []int64
		rule  string
		want  string
	}{
		"on the node that is not cordoned": {claim("22Gi"), []int64{23028}, "", closedNow +
			". Nearest: node n1 (unhealthy: gpu-0)"},
		"beside a rule": {claim("22Gi"), []int64{23028, 23028}, v1alpha1.PoolName("n1"), closedNow +
			". Nearest: node n1 (taint repair: gpu-1; unhealthy: gpu-0)"},
		"one of all that are asked for": {all, []int64{23028, 23028}, "", "request gpu: all GPUs that match are asked for, " +
			"and some take no new claims at the moment: node n1 (unhealthy); the Events of the node say more"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				other := slice(23028)
				other.Name, other.Spec.NodeName, other.Spec.Pool.Name = "s2", ptr.To("n2"), v1alpha1.PoolName("n2")
				s.hold(other)
				if test.claim != all {
					apitest.Create(s, s.client, other)
				}
				apitest.Update(s, s.client, sliceOf(devices.Options{Mode: mode.Share, GPUTaints: sick}, test.gpus...))
				if test.rule != "" {
					s.closes(test.rule)
				}
				s.create(test.claim, pod(refused))
				time.Sleep(3 * time.Minute)
				s.told("after a while", warning+test.want)
			}, cordoned)
		})
	}
}

// Where it is not known whether there are rules, they may be why a pod waits.
func TestRulesThatAreNotKnown(t *testing.T) {
	resource := resourceapi.Resource("devicetaintrules")
	for name, err := range map[string]error{"not served": apierrors.NewNotFound(resource, ""),
		"not allowed": apierrors.NewForbidden(resource, "", errors.New("no"))} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				apitest.Answer(s.client, "list", resource.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, err
				})
				s.create(claim("22Gi"), pod(refused))
				time.Sleep(3 * time.Minute)
				s.told("when it stays free", warning+"the GPUs that the pod asks for are free on node n1, and it still waits. A "+
					"DeviceTaintRule may close them, or the pod needs something else that the node lacks: kubectl inspect cgpu "+
					"explain pod/p reads the rules, the scheduler's Event says the rest")
			})
		})
	}
}
