// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// No more containers have the limits of a share than may, whether they are there when the claim
// is prepared or join it later; and none has two shares, of which one would run beside MPS.
func TestPodsThatJoinClaims(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, modesNode)
	cluster.Publishes(t, modesNode, harness.DevicesIn("mps")...)
	ns := cluster.Namespace(t)
	for i, name := range []string{"first", "second", "crowd"} {
		ns.Claim(t, name, harness.Requests(harness.Capped("mps", i%2, "memory", "1Gi")))
	}
	containers := func(count int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for i := range count - 1 {
				c := pod.Spec.Containers[0]
				c.Name = fmt.Sprint("more-", i)
				pod.Spec.Containers = append(pod.Spec.Containers, c)
			}
		}
	}
	ns.Create(t, harness.Pod("crowd", modesNode, containers(12), harness.FromClaim("crowd")))
	ns.WaitPodEvent(t, "crowd", "FailedPrepareDynamicResources", "12 containers share 1 GiB")

	ns.Run(t, harness.Pod("two", modesNode, containers(2), harness.FromClaim("first")),
		harness.Pod("more", modesNode, containers(2), harness.FromClaim("first")),
		harness.Pod("other", modesNode, harness.FromClaim("second")))
	ns.Create(t, harness.Pod("fifth", modesNode, harness.FromClaim("first")),
		harness.Pod("joins", modesNode, harness.FromClaim("second"), func(pod *corev1.Pod) {
			first := "first"
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims,
				corev1.PodResourceClaim{Name: "beside", ResourceClaimName: &first})
			pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims,
				corev1.ResourceClaim{Name: "beside"})
		}))
	ns.WaitPodEvent(t, "fifth", "Failed", "4 containers have its share already")
	ns.WaitPodEvent(t, "joins", "Failed", "two shares by MPS")

	// With one of them gone there is room for another.
	ns.Delete(t, "fifth", "more")
	ns.Run(t, harness.Pod("next", modesNode, harness.FromClaim("first")))
}
