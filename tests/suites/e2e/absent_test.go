// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// readInterval is a setting that the test cluster has, and that a plugin can do without.
const readInterval = "GPU_READ_INTERVAL"

// A node without an NVIDIA driver, and one whose driver is of another version than its kernel module, as after an
// upgrade, say so, offer nothing, and offer their GPUs when there is one that works, without a restart.
func TestNoDriverThatWorks(t *testing.T) {
	t.Parallel()
	// The kubelet takes half a minute to remove the slices of a plugin that does not come back: on both at once.
	cluster.Whole(t, "bad")
	cluster.Whole(t, flipNode)
	began := time.Now()
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	const driverRoot = "/run/nvidia/driver"
	putBack := moveAway(t, cluster.NodeFile("bad", driverRoot))
	repair := cluster.ChangeMachine(t, flipNode, func(s *sim.Spec) {
		s.Driver.Errors = map[string]string{"init": "LIB_RM_VERSION_MISMATCH"}
	})
	set := pluginWith(t, "bad", map[string]string{readInterval: ""})
	cluster.ReplacePlugin(t, flipNode)

	for node, says := range map[string][]string{
		"bad": {"No GPUs are offered on this node: no NVIDIA driver: looking for libnvidia-ml.so.1 in the driver root " +
			driverRoot, "say where it is by NVIDIA_DRIVER_ROOT"},
		flipNode: {"initialising NVML from " + driverRoot + "/",
			"the NVIDIA kernel module is of another version than the library"},
	} {
		for _, text := range says {
			cluster.WaitNodeEvent(t, node, began, "GPUDriverUnavailable", text)
		}
		cluster.PublishesNothing(t, node)
		ns.Create(t, harness.Pod(node, node, harness.FromTemplate("one")))
		ns.WaitUnschedulable(t, node, noRoom)
	}
	if _, faults := cluster.Inspect(t); !harness.ContainsAll(faults,
		[]string{"bad", "no GPUs: GPUDriverUnavailable: No GPUs are offered on this node: no NVIDIA driver"}) {
		t.Errorf("kubectl inspect cgpu does not name the node's fault:\n%s", faults)
	}

	repair()
	// The plugin takes the setting by itself, as when a ConfigMap is made after it was
	// found to be missing.
	before := cluster.Plugin(t, "bad")
	set(readInterval, "2s")
	cluster.WaitPluginAgain(t, before)
	// A driver in a container is mounted when it is there. The plugin sees it without restarting.
	expect.NoError(t, os.Mkdir(cluster.NodeFile("bad", driverRoot), 0o755))
	t.Cleanup(func() {
		if err := os.Remove(cluster.NodeFile("bad", driverRoot)); err != nil {
			t.Errorf("make room for the driver of node bad: %v", err)
		}
		putBack()
	})
	cluster.BindOnNode(t, "bad", driverRoot+".away", driverRoot)
	for _, node := range []string{"bad", flipNode} {
		cluster.Slice(t, node, "has its GPUs again", hasDevices(4))
		ns.WaitRunning(t, node)
	}
	// A plugin that waited for its driver watches events again only up to half a minute later, and misses those of
	// the next test.
	cluster.ReplacePlugin(t, flipNode)
}

// undoOnce is for what may fail the test: sync.OnceFunc would make that a panic, which ends all
// tests.
func undoOnce(undo func()) func() {
	done := false
	return func() {
		if !done {
			undo()
			done = true
		}
	}
}

// The API server is away while a plugin starts, and pods are to be started when
// it comes back. What ran goes on. As every test that is not parallel, it has the cluster to itself.
func TestAPIServerAway(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Run(t, harness.Pod("before", "kill", harness.FromTemplate("one")))
	before := ns.Containers(t)
	plugin := cluster.Plugin(t, "kill")

	// The kubelet starts it again only when it goes on.
	resume := cluster.PauseKubelet(t, "kill")
	serves := cluster.KillPlugin(t, "kill")
	start := cluster.StopAPIServer(t)
	resume()
	cluster.WaitPluginOutput(t, plugin, "The node cannot be read from the API server, will try again")
	began := time.Now()
	start()
	cluster.WaitAPIServer(t)
	serves()
	cluster.Slice(t, "kill", "has its GPUs", hasDevices(4))
	ns.Run(t, harness.Pod("after", "kill", harness.FromTemplate("one")))
	t.Logf("a new pod runs %s after the API server was started again", since(began))
	ns.KeptRunning(t, before)
	ns.HasUnits(t, "kill", 2, 0, 0, 0)
}

// The API server goes away while claims are prepared: the plugin has to ask it for
// each. The kubelet tries again what failed.
func TestAPIServerGoesAwayWhilePreparing(t *testing.T) {
	survivesWhilePreparing(t, refusedByServerLoss, func() {
		cluster.StopAPIServer(t)()
		cluster.WaitAPIServer(t)
	})
}
