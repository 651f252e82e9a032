// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A scheduler's allocation can reach the API server long after the node has
// changed its mode. Here the test is the scheduler.
func TestAllocationThatComesAfterAChangeOfTheMode(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "card", harness.Requests(harness.Exclusive("gpu", 1)))
	setMode("default")
	cluster.Publishes(t, "switch", "gpu-0")

	ns.Claim(t, "late", harness.Requests(harness.Share("gpu", "3Gi")))
	ns.Create(t, harness.Pod("late", "switch", harness.FromClaim("late"),
		func(pod *corev1.Pod) { pod.Spec.SchedulerName = "this-test" }))
	ns.Schedule(t, "late", "switch", "late", resourceapi.DeviceRequestAllocationResult{
		Request: "gpu", Driver: "gpu.aliyun.com", Pool: "switch/gpu", Device: "gpu-0-share",
		ShareID: ptr.To(types.UID("5c1fd4c8-7f2e-4b51-9a31-0c6f0d3a5e11")),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse("3Gi"), "slots": resource.MustParse("1"),
		},
	})
	ns.WaitPodEvent(t, "late", "FailedPrepareDynamicResources", "the node has changed to mode exclusive since: delete "+
		"the pod")

	// It holds nothing: the GPU is for whoever is promised it now.
	ns.Run(t, harness.Pod("whole", "switch", harness.FromTemplate("card")))
	ns.SeesItsGPUs(t, "whole", "main", ns.Granted(t, "whole"))
}
