// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// held adds a claim that has a device of a node.
func (s *site) held(node, device string) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: node + "-" + device}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.DriverName,
			Pool: v1alpha1.PoolName(node), Device: device}}}}
	s.Snapshot.Claims = append(s.Snapshot.Claims, claim)
}

// on is a manifest of a pod for a node, or any.
func on(name, resource, node string) string {
	return `---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  nodeSelector: {` + node + `}
  containers: [{name: main, image: train, resources: {limits: {` + resource + `: 1}}}]
`
}

// What would fit if the fullest node were filled first is found out by what is left of each: of a GPU its memory
// once, however many instances it can be cut into, and without what is held as a whole.
func TestTheFullestNodeHasTheLeastLeft(t *testing.T) {
	const small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-7g.80gb"
	dynamic := gpu.Partitioned{Profiles: kinds()}
	for name, test := range map[string]struct {
		nodes    func(*site)
		manifest string
	}{
		"an instance that somebody has": {func(s *site) {
			s.instances("n1", mode.Exclusive, gpus(0), inMIGMode(0, 1, dynamic))
			s.instances("n2", mode.Exclusive, gpus(0), inMIGMode(0, 1, dynamic))
			s.held("n2", "gpu-0-mig-1g-10gb-5")
		}, on("first", small, "") + on("second", large, "")},
		"places of one GPU": {func(s *site) {
			s.instances("n1", mode.Exclusive, gpus(0), inMIGMode(0, 2, cut()))
			s.instances("n2", mode.Exclusive, gpus(0), inMIGMode(0, 1, dynamic))
		}, on("first", small, "") + on("a", small, "kubernetes.io/hostname: n1") + on("b", small,
			"kubernetes.io/hostname: n1") + on("c", small, "kubernetes.io/hostname: n1") + on("d", small,
			"kubernetes.io/hostname: n1")},
		"a whole GPU that somebody has": {func(s *site) {
			s.node("n1", 2, mode.Exclusive)
			s.node("n2", 2, mode.Exclusive)
			s.held("n2", "gpu-0")
		}, on("first", "nvidia.com/gpu", "") + strings.Replace(on("second", "nvidia.com/gpu", ""), ": 1}", ": 2}", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			test.nodes(s)
			s.read(t, test.manifest)
			made := s.plan(t)
			if made.Waits != 1 {
				t.Errorf("%d wait\n%s", made.Waits, printed(t, made))
			}
			contains(t, strings.Join(made.Notes, "\n"), "1 more would fit if the scheduler filled one node after the other")
		})
	}
}
