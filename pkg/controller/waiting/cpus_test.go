// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/cpu"
)

// A pod that waits for CPUs is told of nodes whose dra-driver-cpu cannot serve it, and of none that can.
func TestPodsThatAskForCPUsAreToldOfAnOldDriver(t *testing.T) {
	published := func(node string, shape cpu.Shape, layout cpu.Layout) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "cpus-" + node},
			Spec: resourceapi.ResourceSliceSpec{Driver: cpu.DriverName, NodeName: &node,
				Devices: cpu.Devices(shape, layout, map[int64]int64{0: 8, 1: 8})}}
	}
	for name, test := range map[string]struct {
		slices []*resourceapi.ResourceSlice
		want   string
	}{
		"main": {[]*resourceapi.ResourceSlice{published("n1", cpu.Main, cpu.ByNUMANode),
			published("n2", cpu.Main, cpu.BySocket), published("n3", cpu.Release, cpu.BySocket)}, ""},
		"release 0.2.0 on two nodes": {[]*resourceapi.ResourceSlice{published("n1", cpu.Main, cpu.ByNUMANode),
			published("n3", cpu.Release, cpu.ByNUMANode), published("n2", cpu.Release, cpu.ByNUMANode)},
			". On node n2, n3 the devices of class dra.cpu have no attribute resource.kubernetes.io/numaNode, as with release " +
				"0.2.0 of dra-driver-cpu: which CPUs are near a GPU cannot be told. It takes a dra-driver-cpu of its main " +
				"branch, from 2026-08-13 on: docs/legacy.md#cpus-of-a-containers-own"},
		"the machine": {[]*resourceapi.ResourceSlice{published("n1", cpu.Main, cpu.ByMachine)},
			". On node n1 all CPUs are one device of class dra.cpu, which only another scheduler can give away. It takes " +
				"dra-driver-cpu with groupBy: numanode: docs/legacy.md#cpus-of-a-containers-own"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				apitest.Create(s, s.client, test.slices...)
				s.create(claimOf(t, "gpushare.mem-cpu8.main.3"), pod(refused))
				time.Sleep(time.Minute)
				s.told("after a while", warning+"the GPUs that the pod asks for are free on node n1. CPUs may be missing, "+
					"too: the pod asks for 8 of class dra.cpu"+test.want)
			})
		})
	}
}

// claimOf is a claim of a converted pod, by the name of its template.
func claimOf(t *testing.T, template string) *resourceapi.ResourceClaim {
	t.Helper()
	request, err := legacy.ParseName(template)
	expect.NoError(t, err)
	spec := request.Template("ns").Spec
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Labels: spec.Labels}, Spec: spec.Spec}
}

// What is free of CPUs is not known, but that a pod asks for some is.
func TestPodsThatAskForCPUsAreTold(t *testing.T) {
	const none = ". No node publishes devices of class dra.cpu"
	const onACK = ". On ACK: node(s) didn't have enough device resources to allocate"
	for name, test := range map[string]struct {
		template string
		said     string
		want     []string
	}{
		"near a GPU that is free": {"gpushare.mem-cpu8.main.3", refused, []string{warning + "the GPUs that the pod asks " +
			"for are free on node n1. CPUs may be missing, too: the pod asks for 8 of class dra.cpu" + none}},
		"near a GPU that is not": {"gpushare.mem-cpu8.main.22", refused, []string{warning + "request main: the GPUs that " +
			"match are all taken or too full: 1 GPU on node n1. Nearest: node n1 (memory: asked 22Gi, largest free 19Gi on " +
			"gpu-0). CPUs may be missing, too: the pod asks for 8 of class dra.cpu" + none + onACK}},
		"near a GPU that there is not": {"gpushare.mem-cpu8.main.90", refused,
			[]string{warning + never + "request main: 90Gi " +
				"of memory asked for; the largest GPU that matches has 22Gi (node n1, NVIDIA-A10)" + onACK}},
		"alone": {"gpushare.cpu.main.8", refused, []string{warning + "no node for the pod has the 8 exclusive CPUs free " +
			"that it asks for by claims of class dra.cpu: the CPUs of a claim must be of one NUMA node, or half of them of " +
			"each of two (annotation cpuset-scheduler)" + none}},
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
				s.create(claimOf(t, test.template), pod(test.said))
				time.Sleep(time.Minute)
				s.told("after a while", test.want...)
			})
		})
	}
}
