// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// What is free of CPUs is not known, but that a pod asks for some is.
func TestPodsThatAskForCPUsAreTold(t *testing.T) {
	claimOf := func(template string) *resourceapi.ResourceClaim {
		request, err := legacy.ParseName(template)
		if err != nil {
			t.Fatal(err)
		}
		spec := request.Template("ns").Spec
		return &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Labels: spec.Labels}, Spec: spec.Spec}
	}
	const onACK = ". On ACK: node(s) didn't have enough device resources to allocate"
	for name, test := range map[string]struct {
		template string
		said     string
		want     []string
	}{
		"near a GPU that is free": {"gpushare.mem-cpu8.main.3", refused, []string{warning + "the GPUs that the pod asks " +
			"for are free on node n1. It may also be CPUs that are missing: of class dra.cpu the pod asks for 8"}},
		"near a GPU that is not": {"gpushare.mem-cpu8.main.22", refused, []string{warning + "request main: the GPUs that " +
			"match are all taken or too full: 1 GPU on node n1. Nearest: node n1 (memory: asked 22Gi, largest free 19Gi on " +
			"gpu-0). It may also be CPUs that are missing: of class dra.cpu the pod asks for 8" + onACK}},
		"near a GPU that there is not": {"gpushare.mem-cpu8.main.90", refused,
			[]string{warning + never + "request main: 90Gi " +
				"of memory asked for; the largest GPU that matches has 22Gi (node n1, NVIDIA-A10)" + onACK}},
		"alone": {"gpushare.cpu.main.8", refused, []string{warning + "no node that the pod can go to has the 8 CPUs of its " +
			"own free that it asks for by claims of class dra.cpu: those of a claim have to be of one NUMA node, or half of " +
			"them each of two (annotation cpuset-scheduler)"}},
		"while other things are missing": {"gpushare.cpu.main.8", "0/1 nodes are available: 1 Insufficient cpu.", nil},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				part := slice(23028)
				for _, capacity := range []resourceapi.QualifiedName{v1alpha1.CapMemory, v1alpha1.CapSlots} {
					of := part.Spec.Devices[0].Capacity[capacity]
					of.Value = resource.MustParse(map[resourceapi.QualifiedName]string{v1alpha1.CapMemory: "3Gi",
						v1alpha1.CapSlots: "1"}[capacity])
					part.Spec.Devices[0].Capacity[capacity] = of
				}
				s.hold(part)
				s.create(claimOf(test.template), pod(test.said))
				time.Sleep(time.Minute)
				s.told("after a while", test.want...)
			})
		})
	}
}
