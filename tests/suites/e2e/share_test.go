// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

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
}

func TestAdminAccessSeesAFullGPUAndTakesNothing(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	ns := cluster.Namespace(t, harness.AdminAccess)
	look := func(index int) resourceapi.ResourceClaimSpec {
		request := harness.Matching(harness.Share("gpu", "0"), harness.OnGPU(index))
		request.Exactly.Capacity.Requests["slots"] = resource.MustParse("0")
		request.Exactly.AdminAccess = ptr.To(true)
		return harness.Requests(request)
	}
	all := func(index int) resourceapi.ResourceClaimSpec {
		return harness.Requests(harness.Matching(harness.Share("gpu", "15Gi"), harness.OnGPU(index)))
	}
	ns.Template(t, "all-of-0", all(0))
	ns.Template(t, "all-of-1", all(1))
	ns.Template(t, "look-at-0", look(0))
	ns.Template(t, "look-at-1", look(1))
	ns.Run(t, harness.Pod("user-0", "fill", harness.FromTemplate("all-of-0")),
		harness.Pod("admin-1", "fill", harness.FromTemplate("look-at-1")))
	// The GPU is full when the admin comes, and the admin is there when the user comes.
	ns.Run(t, harness.Pod("admin-0", "fill", harness.FromTemplate("look-at-0")),
		harness.Pod("user-1", "fill", harness.FromTemplate("all-of-1")))

	for _, pod := range []string{"admin-0", "admin-1"} {
		ns.SeesItsGPUs(t, pod, "main", ns.Granted(t, pod))
		ns.HasEnv(t, pod, "main", map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"})
	}
	ns.HasUnits(t, "fill", 15, 15, 0, 0)
}
