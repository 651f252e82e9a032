// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

const unhealthyGPU0 = "gpu-0-share " + v1alpha1.TaintUnhealthy + ":NoSchedule"

// healthShown is what a pod's status says of the GPUs of its container.
func healthShown(pod *corev1.Pod) (health, message string) {
	for _, c := range pod.Status.ContainerStatuses {
		for _, status := range c.AllocatedResourcesStatus {
			for _, resource := range status.Resources {
				health = string(resource.Health)
				if resource.Message != nil {
					message = *resource.Message
				}
			}
		}
	}
	return health, message
}

// showsHealth waits until the status of the pod says so.
func showsHealth(t *testing.T, ns *harness.Namespace, name, want, text string) {
	t.Helper()
	ns.WaitPod(t, name, "to show that its GPU is "+want, func(pod *corev1.Pod) error {
		if health, message := healthShown(pod); health != want || !strings.Contains(message, text) {
			return fmt.Errorf("it says %q, %q", health, message)
		}
		return nil
	})
}

// An error of a GPU keeps new pods off it, is shown in the pods that have it, ends none of
// them, survives a restart of the plugin, and is over when the driver says so.
func TestGPUThatFailsAndRecovers(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	cluster.Publishes(t, "bad", harness.DevicesIn("share")...)
	ns.Run(t, harness.Pod("first", "bad", harness.FromTemplate("one")))
	if got := ns.Granted(t, "first")[0].GPU.Index; got != 0 {
		t.Fatalf("the first pod has GPU %d, want 0", got)
	}
	showsHealth(t, ns, "first", "Healthy", "")
	before := ns.Containers(t)

	began := time.Now()
	fault := func(text string) {
		t.Helper()
		cluster.Tool(t, "node", "fault", "bad", "gpu-0", text)
	}
	// What is broken is whole after the test, whatever becomes of it.
	cluster.ChangeMachine(t, "bad", func(*sim.Spec) {})

	// What a program causes is its own matter.
	fault("xid=31")
	cluster.WaitPluginOutput(t, cluster.Plugin(t, "bad"), "xid=31")
	cluster.Publishes(t, "bad", harness.DevicesIn("share")...)

	failed := time.Now()
	fault("xid=79")
	others := harness.DevicesIn("share")[1:]
	cluster.Publishes(t, "bad", append([]string{unhealthyGPU0}, others...)...)
	t.Logf("the fault was published after %s", time.Since(failed).Round(time.Millisecond))
	cluster.WaitNodeEvent(t, "bad", began, v1alpha1.ReasonUnhealthy, "XID 79")
	showsHealth(t, ns, "first", "Unhealthy", "XID 79")
	ns.Run(t, harness.Pod("second", "bad", harness.FromTemplate("one")))
	if got := ns.Granted(t, "second")[0].GPU.Index; got == 0 {
		t.Error("a new pod got the GPU that failed")
	}

	cluster.ReplacePlugin(t, "bad")
	cluster.Publishes(t, "bad", append([]string{unhealthyGPU0}, others...)...)
	showsHealth(t, ns, "first", "Unhealthy", "XID 79")

	healed := time.Now()
	fault("heal")
	cluster.Publishes(t, "bad", harness.DevicesIn("share")...)
	t.Logf("the GPU was offered again after %s", time.Since(healed).Round(time.Millisecond))
	showsHealth(t, ns, "first", "Healthy", "")
	cluster.WaitNodeEvent(t, "bad", began, v1alpha1.ReasonHealthy, "healthy again")
	ns.Run(t, harness.Pod("third", "bad", harness.FromTemplate("one")))
	if got := ns.Granted(t, "third")[0].GPU.Index; got != 0 {
		t.Errorf("after its recovery a new pod got GPU %d, want 0", got)
	}
	ns.KeptRunning(t, before)
}

// All eight GPUs of a node that come and go cost few writes, and are used when they stay.
func TestGPUsThatComeAndGo(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "whole")
	cluster.Publishes(t, "whole", harness.DeviceNames(8, "gpu-%d")...)
	// Each write that changes anything is another generation.
	generation := func() int64 {
		return cluster.Slice(t, "whole", "has a generation", func(slice *resourceapi.ResourceSlice) error {
			if slice.Generation == 0 {
				return errors.New("it has none")
			}
			return nil
		}).Generation
	}
	putBack := cluster.ChangeMachine(t, "whole", func(*sim.Spec) {})
	fault := func(text string) {
		t.Helper()
		for gpu := range 8 {
			cluster.Tool(t, "node", "fault", "whole", fmt.Sprintf("gpu-%d", gpu), text)
		}
	}
	first, began := generation(), time.Now()
	fault("recovery=1")
	cluster.Publishes(t, "whole", harness.DeviceNames(8, "gpu-%d "+v1alpha1.TaintUnhealthy+":NoSchedule")...)
	// The least time between two writes is a second, and GPUs have to have been well for five: some
	// of each fit into this, and all go both ways however slow the machine is.
	const lasts = 15 * time.Second
	for i := 0; i < 2 || time.Since(began) < lasts; i++ {
		fault("heal")
		fault("recovery=1")
	}
	writes, lasted := generation()-first, time.Since(began)
	t.Logf("%d writes in %s", writes, lasted.Round(time.Second))
	if float64(writes) > lasted.Seconds() {
		t.Errorf("%d writes in %s, want one a second at most", writes, lasted)
	}
	putBack()
	cluster.Publishes(t, "whole", harness.DeviceNames(8, "gpu-%d")...)
}
