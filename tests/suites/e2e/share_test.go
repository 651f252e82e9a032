// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// noRoom is what the scheduler says of a node whose GPUs cannot satisfy a claim.
const noRoom = "cannot allocate all claims"

func TestSharesFillOneGPUAfterTheOther(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Share("gpu", "3Gi")))
	ns.Template(t, "sixteen", harness.Requests(harness.Share("gpu", "16Gi")))
	pods := harness.Pods(8, "p", "fill", harness.FromTemplate("three"))
	ns.Run(t, pods...)
	// More than any GPU has.
	ns.Create(t, harness.Pod("large", "fill", harness.FromTemplate("sixteen")))

	ns.HasUnits(t, "fill", 15, 9, 0, 0)
	for _, pod := range pods {
		grants := ns.Granted(t, pod.Name)
		if len(grants) != 1 {
			t.Fatalf("pod %s was granted %d shares, want 1", pod.Name, len(grants))
		}
		ns.HasEnv(t, pod.Name, "main", harness.LegacyEnv(3, 15, 3, grants[0].GPU.Index))
		ns.SeesItsGPUs(t, pod.Name, "main", grants)
	}
	ns.WaitUnschedulable(t, "large", noRoom)

	// What one gives back on the first GPU goes to the next that comes.
	i := slices.IndexFunc(pods, func(pod *corev1.Pod) bool {
		grants := ns.Granted(t, pod.Name)
		return len(grants) > 0 && grants[0].GPU.Index == 0
	})
	if i < 0 {
		t.Fatal("none of the pods has its share on GPU 0, want five of the eight there")
	}
	ns.Delete(t, pods[i].Name)
	ns.Run(t, harness.Pod("next", "fill", harness.FromTemplate("three")))
	ns.HasUnits(t, "fill", 15, 9, 0, 0)
	ns.WaitUnschedulable(t, "large", noRoom)
}

func TestSharesOfSeveralGPUs(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	request := harness.Share("gpu", "2Gi")
	request.Exactly.AllocationMode, request.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 2
	ns.Template(t, "two-cards", harness.Requests(request))
	ns.Run(t, harness.Pod("a", "share", harness.FromTemplate("two-cards")))

	grants := ns.Granted(t, "a")
	if len(grants) != 2 || grants[0].GPU.UUID == grants[1].GPU.UUID {
		t.Fatalf("granted %+v, want shares of two GPUs", grants)
	}
	ns.SeesItsGPUs(t, "a", "main", grants)
	// The variable has them in ascending order, whatever that of the grants is.
	one, other := grants[0].GPU.Index, grants[1].GPU.Index
	ns.HasEnv(t, "a", "main", harness.LegacyEnv(2, 22, 4, min(one, other), max(one, other)))

	legacy := harness.Document[corev1.Pod](t, "four-gpus.yaml")
	ns.Run(t, harness.On("share", legacy)...)
	ns.HasEnv(t, legacy.Name, "main", harness.LegacyEnv(2, 22, 8, 0, 1, 2, 3))
	ns.SeesItsGPUs(t, legacy.Name, "main", ns.Granted(t, legacy.Name))
}
