// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/tests/e2e/harness"
)

// These tests take away what every node depends on, and have the cluster to
// themselves, as every test that is not parallel.

// readInterval is a setting that the test cluster has, and that a plugin can do without.
const readInterval = "GPU_READ_INTERVAL"

// A node without the NVIDIA driver says so, offers nothing, and offers its cards
// when there is one.
func TestNoDriver(t *testing.T) {
	began := time.Now()
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	t.Cleanup(func() { cluster.ReplacePlugins(t) })
	putBack := moveAway(t, cluster.NodeFile("bad", "run/nvidia/driver"))
	set := unsetInConfigMap(t, readInterval)

	cluster.ReplacePlugin(t, "bad")
	cluster.WaitNodeEvent(t, "bad", began, "GPUDriverUnavailable",
		"No GPUs are offered on this node: no NVIDIA driver: looking for libnvidia-ml.so.1 in the driver root "+
			"/run/nvidia/driver")
	cluster.WaitNodeEvent(t, "bad", began, "GPUDriverUnavailable", "say where it is by NVIDIA_DRIVER_ROOT")
	cluster.Slice(t, "bad", "is empty", hasDevices(0))
	if _, faults := cluster.Inspect(t); !harness.ContainsAll(faults,
		[]string{"bad", "no GPUs: GPUDriverUnavailable: No GPUs are offered on this node: no NVIDIA driver"}) {
		t.Errorf("kubectl inspect cgpu does not name the node's fault:\n%s", faults)
	}
	ns.Create(t, harness.Pod("a", "bad", harness.FromTemplate("one")))
	ns.WaitUnschedulable(t, "a", noRoom)

	// The plugin takes the setting by itself, as when a ConfigMap is made after it was
	// found to be missing.
	putBack()
	set()
	cluster.Slice(t, "bad", "has its GPUs again", hasDevices(4))
	ns.WaitRunning(t, "a")
}

// unsetInConfigMap takes a setting out of the plugins' ConfigMap until the
// returned function is called, or the test ends. Plugins read it when they start, and
// start anew when they see it change, which is when their kubelets look at their pods
// next. The returned function has them look at once, and waits for it, so that no
// plugin starts anew while other tests run.
func unsetInConfigMap(t *testing.T, key string) (undo func()) {
	t.Helper()
	maps := cluster.Client.CoreV1().ConfigMaps(harness.PluginNamespace)
	before, err := maps.Get(t.Context(), daemonSet, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(value string) {
		t.Helper()
		if _, err := maps.Patch(context.Background(), daemonSet, types.MergePatchType,
			fmt.Appendf(nil, `{"data":{%q:%s}}`, key, value), metav1.PatchOptions{}); err != nil {
			t.Errorf("set %s in the plugins' ConfigMap to %s: %v", key, value, err)
		}
	}
	undo = undoOnce(func() {
		patch(strconv.Quote(before.Data[key]))
		cluster.WaitPluginSetting(t, key, before.Data[key])
	})
	t.Cleanup(undo)
	patch("null")
	return undo
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
// it comes back. What ran goes on.
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
	survivesWhilePreparing(t, func() {
		cluster.StopAPIServer(t)()
		cluster.WaitAPIServer(t)
	})
}
