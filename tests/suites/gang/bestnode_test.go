// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// nominateBest has the controller nominate nodes by a setting until the test ends.
func nominateBest(t *testing.T, ns *harness.Namespace, placement score.Setting) {
	t.Helper()
	const option = "../../../deployments/options/best-node"
	if output, err := ns.Kubectl(t, "apply", "-k", option); err != nil {
		t.Fatalf("apply option best-node: %v: %s", err, output)
	}
	maps := cluster.Client.CoreV1().ConfigMaps(harness.PluginNamespace)
	set := func(ctx context.Context, data string) error {
		_, err := maps.Patch(ctx, v1alpha1.ControllerName, types.MergePatchType, []byte(`{"data":`+data+`}`),
			metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Timeout)
		defer cancel()
		if err := set(ctx, `{"BEST_NODE":null,"NODE_PLACEMENT":null}`); err != nil {
			t.Errorf("have no nodes nominated again: %v", err)
		}
	})
	if err := set(t.Context(), fmt.Sprintf(`{"BEST_NODE":"true","NODE_PLACEMENT":%q}`, placement)); err != nil {
		t.Fatal(err)
	}
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
	harness.Eventually(t, fmt.Sprintf("pod %s to be nominated to %q", name, node), func(ctx context.Context) error {
		pod, err := ns.Client.CoreV1().Pods(ns.Name).Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.NominatedNodeName != node {
			err = fmt.Errorf("it is nominated to %q", pod.Status.NominatedNodeName)
		}
		return err
	})
}

func runsOn(t *testing.T, ns *harness.Namespace, name, node string) {
	t.Helper()
	ns.WaitRunning(t, name)
	pod, err := ns.Client.CoreV1().Pods(ns.Name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || pod.Spec.NodeName != node || pod.Status.NominatedNodeName != "" {
		t.Errorf("error %v: pod %s is on node %q and nominated to %q, want it on %q, and nominated no more", err, name,
			pod.Spec.NodeName, pod.Status.NominatedNodeName, node)
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
