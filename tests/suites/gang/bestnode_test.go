// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// nominateBest has the controller nominate nodes by a setting until the test ends.
func nominateBest(t *testing.T, ns *harness.Namespace, placement score.Setting) {
	t.Helper()
	// The rights stay: the controller uses them until it knows that the setting is gone.
	ns.MustKubectl(t, "apply", "-k", "../../../deployments/options/best-node")
	cluster.SetController(t, map[string]string{"BEST_NODE": "true", "NODE_PLACEMENT": string(placement)})
}

// anywhere is a pod that names no node.
func anywhere(name, template string) *corev1.Pod {
	pod := harness.Pod(name, "", harness.FromTemplate(template))
	pod.Spec.NodeSelector = nil
	return pod
}

// waitNominated waits until a pod is nominated to a node, none where it is empty.
func waitNominated(t *testing.T, ns *harness.Namespace, name, node string) {
	t.Helper()
	ns.WaitPod(t, name, fmt.Sprintf("to be nominated to %q", node), func(pod *corev1.Pod) error {
		if pod.Status.NominatedNodeName != node {
			return fmt.Errorf("it is nominated to %q", pod.Status.NominatedNodeName)
		}
		return nil
	})
}

func runsOn(t *testing.T, ns *harness.Namespace, name, node string) {
	t.Helper()
	ns.WaitRunning(t, name)
	if pod := ns.Get(t, name); pod.Spec.NodeName != node || pod.Status.NominatedNodeName != "" {
		t.Errorf("pod %s is on node %q and nominated to %q, want it on %q, and nominated no more", name, pod.Spec.NodeName,
			pod.Status.NominatedNodeName, node)
	}
}

// Pods go to the node where they leave the most room for others, which by itself the scheduler would choose by chance
// and by CPU. A nomination that turns out wrong keeps no pod waiting, nor does a controller that is gone.
func TestBestNode(t *testing.T) {
	setMode := cluster.Label(t, "whole", ack.NodeLabelSchedule)
	setMode("share")
	ns := cluster.Namespace(t)
	cluster.Publishes(t, "whole", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")
	nominateBest(t, ns, score.Best)
	large := harness.Share("gpu", "9Gi")
	ns.Template(t, "large", harness.Requests(large))
	ns.Template(t, "small", harness.Requests(harness.Share("gpu", "6Gi")))
	large.Exactly.AllocationMode, large.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 4
	ns.Template(t, "four", harness.Requests(large))

	// From a pod that is never placed the controller learns that shares of 9 GiB are asked for.
	ns.Create(t, harness.Pod("typical", "nowhere", harness.FromTemplate("large")))
	ns.WaitUnschedulable(t, "typical", "")
	ns.Run(t, harness.Pod("holder", "whole", harness.FromTemplate("large")))
	t.Run("the better node", func(t *testing.T) {
		cluster.RestartScheduler(t, func() {
			ns.Create(t, anywhere("small", "small"))
			waitNominated(t, ns, "small", "whole")
		})
		runsOn(t, ns, "small", "whole")
		ns.Delete(t, "small")
	})
	t.Run("a node that is taken by somebody else", func(t *testing.T) {
		holder := ns.ClaimOf(t, "holder")
		taken := holder.Status.Allocation.DeepCopy()
		taken.Devices.Results[0].Pool, taken.Devices.Results[0].Device = v1alpha1.PoolName("share"), "gpu-0-share"
		taken.NodeSelector = nil
		cluster.RestartScheduler(t, func() {
			ns.Create(t, anywhere("four", "four"))
			waitNominated(t, ns, "four", "share")
			ns.Create(t, harness.Pod("thief", "share", harness.FromTemplate("large"), harness.OfNobody))
			ns.Promise(t, "thief", "share", taken)
		})
		ns.WaitUnschedulable(t, "four", "cannot allocate all claims")
		waitNominated(t, ns, "four", "")
		ns.Delete(t, "holder")
		runsOn(t, ns, "four", "whole")
		ns.Delete(t, "four", "thief")
	})
	t.Run("the controller is killed", func(t *testing.T) {
		const pods = 8
		for i := range pods {
			ns.Create(t, anywhere(fmt.Sprintf("burst-%d", i), "small"))
			if i == pods/2 {
				cluster.KillLeader(t)
			}
		}
		waitRuns(t, ns, "burst-", pods)
	})
	ns.Delete(t, "typical")
	for i := range 8 {
		ns.Delete(t, fmt.Sprintf("burst-%d", i))
	}
	setMode("default")
	cluster.Publishes(t, "whole", "gpu-0", "gpu-1", "gpu-2", "gpu-3")
}
