// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// GPUs that break while the plugin runs, or are broken when it starts, take no other with them, and are offered again
// when they work.
func TestSickGPUTakesNoOtherWithIt(t *testing.T) {
	cluster.First(t)
	t.Parallel()
	cluster.Whole(t, flipNode)
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	all := harness.DevicesIn("share")
	for _, tc := range []struct {
		name string
		// faults are those of the GPUs from the second on, and says what the node's Event says of each.
		faults []sim.Fault
		says   []string
		// remembered is how many of these GPUs a plugin that runs goes on to offer, by what they told before: the first.
		remembered int
	}{
		{name: "are lost, hang, and do not tell their memory", faults: []sim.Fault{
			{Lost: true}, {Hangs: true}, {Errors: map[sim.Property]string{"memory": "UNKNOWN"}},
		}, says: []string{"Lost", "no answer in time", "memory"}},
		{name: "tell half, and hang once", faults: []sim.Fault{
			{Errors: map[sim.Property]string{"computeCapability": "UNKNOWN"}},
			{Errors: map[sim.Property]string{"uuid": "HANG"}},
		}, says: []string{"compute capability", "no answer in time"}, remembered: 1},
	} {
		cluster.Publishes(t, flipNode, all...)
		began := time.Now()
		putBack := cluster.ChangeMachine(t, flipNode, func(s *sim.Spec) {
			for i, fault := range tc.faults {
				s.GPUs[1+i].Fault = fault
			}
		})
		well := slices.Concat(all[:1], all[1+len(tc.faults):])
		cluster.PublishesInAnyOrder(t, flipNode, slices.Concat(well, all[1:1+tc.remembered])...)
		isTold := func(texts []string) {
			for _, text := range texts {
				cluster.WaitNodeEvent(t, flipNode, began, "GPULeftOut", text)
			}
		}
		isTold(tc.says[tc.remembered:])
		t.Logf("GPUs that %s: left out after %s", tc.name, since(began))

		// The next plugin finds it so.
		cluster.ReplacePlugin(t, flipNode)
		isTold(tc.says)
		cluster.Publishes(t, flipNode, well...)
		pod := fmt.Sprintf("beside-%d", len(tc.faults))
		ns.Run(t, harness.Pod(pod, flipNode, harness.FromTemplate("one")))
		ns.SeesItsGPUs(t, pod, "main", ns.Granted(t, pod))
		healed := time.Now()
		putBack()
		cluster.Publishes(t, flipNode, all...)
		t.Logf("GPUs that %s: offered again after %s", tc.name, since(healed))
	}
}

// After an upgrade of the driver containers get the files of the new one, those that
// are started again as well as new ones. Nobody has to start the plugin again.
func TestUpgradedDriver(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	cluster.FreshPlugin(t, "bad")
	ns := cluster.Namespace(t)
	ns.Claim(t, "a", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Run(t, harness.Pod("a", "bad", harness.FromClaim("a")))
	before := ns.Containers(t)
	spec := filepath.Join(cluster.CDIDir("bad"), cdi.SpecName(recordOf(t, ns, "bad", "a").UID)+".json")

	const old, upgraded = "570.124.06", "580.95.05"
	began := time.Now()
	t.Cleanup(func() {
		cluster.UpgradeDriver(t, "bad", old)
		cluster.ReplacePlugin(t, "bad")
	})
	cluster.UpgradeDriver(t, "bad", upgraded)
	cluster.WaitNodeEvent(t, "bad", began, "GPUDriverReplaced", upgraded)
	cluster.Devices(t, "bad", "have the new version", func(devices []resourceapi.Device) error {
		for _, d := range devices {
			if v := d.Attributes["driverVersion"].VersionValue; v == nil || *v != "580.95.5" {
				return fmt.Errorf("%s has version %v", d.Name, v)
			}
		}
		return nil
	})
	harness.Eventually(t, "the CDI spec of a to have the new files", func(context.Context) error {
		content, err := os.ReadFile(spec)
		if err != nil {
			return err
		}
		if strings.Contains(string(content), old) || !strings.Contains(string(content), "libcuda.so."+upgraded) {
			return fmt.Errorf("it has those of another version")
		}
		return nil
	})
	t.Logf("containers get the new files %s after the upgrade", since(began))
	ns.KeptRunning(t, before)
	showsHealth(t, ns, "a", "Healthy", "")
	ns.Claim(t, "b", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Run(t, harness.Pod("b", "bad", harness.FromClaim("b")))
}
