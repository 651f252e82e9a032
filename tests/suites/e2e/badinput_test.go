// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// failedPrepare is the reason of the kubelet's Event where the driver refuses a
// claim.
const failedPrepare = "FailedPrepareDynamicResources"

// That of a claim is refused when the claim is written (tests/policies). Pods are told of that of their DeviceClass.
func TestConfigurationThatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	class := ns.DeviceClass(t, resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.aliyun.com" && device.allowMultipleAllocations`,
		}}},
		Config: []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: gpuConfig(`"disableIsolatoin":true`)}},
	})
	request := harness.Share("gpu", "1Gi")
	request.Exactly.DeviceClassName = class
	ns.Template(t, "wrong", harness.Requests(request))
	ns.Template(t, "right", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Create(t, harness.Pod("a", "share", harness.FromTemplate("wrong")))
	const says = `unknown field "disableIsolatoin"`
	ns.WaitPodEvent(t, "a", failedPrepare, says)
	described, err := ns.Kubectl(t, "describe", "pod", "a")
	expect.NoError(t, err)
	expect.Says(t, described, says, "opaque config from the DeviceClass")

	ns.Delete(t, "a")
	ns.Run(t, harness.Pod("a", "share", harness.FromTemplate("right")))
}

// One unreadable file costs nobody anything but its own claim's entry.
func TestTruncatedStateFile(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	packedNode(t, "bad", 4)
	began := time.Now()
	ns := cluster.Namespace(t)
	for _, claim := range []string{"a", "b", "c"} {
		ns.Claim(t, claim, harness.Requests(harness.Share("gpu", "3Gi")))
	}
	ns.Run(t, harness.Pod("a", "bad", harness.FromClaim("a")), harness.Pod("b", "bad", harness.FromClaim("b")))
	before := ns.Containers(t)
	known, err := recordsByClaim(t.Context(), ns, "bad")
	expect.NoError(t, err)
	record := recordOf(t, ns, "bad", "a")
	file := filepath.Join(cluster.ClaimsDir("bad"), string(record.UID)+".json")
	expect.NoError(t, os.Truncate(file, 40))

	replaced := time.Now()
	cluster.ReplacePlugin(t, "bad")
	cluster.WaitNodeEvent(t, "bad", began, "GPUStateDamaged", "the state of claim "+string(record.UID)+" cannot be read")
	kept, err := filepath.Glob(filepath.Join(cluster.ClaimsDir("bad"), "quarantine", string(record.UID)+"-*.json"))
	if err != nil || len(kept) != 1 {
		t.Errorf("files set aside: %q, %v, want one", kept, err)
	}
	for _, path := range kept {
		t.Cleanup(func() { _ = os.Remove(path) })
	}
	// What the API server knows of the claim is enough to count it again.
	keepsAgain(t, ns, "bad", known)
	t.Logf("the claim counts again %s after the plugin was replaced", since(replaced))
	ns.Run(t, harness.Pod("c", "bad", harness.FromClaim("c")))
	ns.KeptRunning(t, before)

	ns.Delete(t, "a")
	ns.Run(t, harness.Pod("a-again", "bad", harness.FromClaim("a")))
	ns.HasEnv(t, "a-again", "main", harness.LegacyEnv(3, 15, 3, 0))
}

// recordOf is what the plugin of a node keeps of a claim.
func recordOf(t *testing.T, ns *harness.Namespace, node, claim string) state.Record {
	t.Helper()
	records, err := ns.Records(node)
	expect.NoError(t, err)
	for _, record := range records {
		if record.Namespace == ns.Name && record.Name == claim {
			return record
		}
	}
	t.Fatalf("node %s keeps no state file of claim %s", node, claim)
	return state.Record{}
}

func hasDevices(want int) func(*resourceapi.ResourceSlice) error {
	return func(slice *resourceapi.ResourceSlice) error {
		if got := len(slice.Spec.Devices); got != want {
			return fmt.Errorf("it has %d devices, want %d", got, want)
		}
		return nil
	}
}

// moveAway hides a file of a node until the returned function is called, or the
// test ends.
func moveAway(t *testing.T, path string) (putBack func()) {
	t.Helper()
	away := path + ".away"
	expect.NoError(t, os.Rename(path, away))
	putBack = func() {
		if err := os.Rename(away, path); err != nil && !os.IsNotExist(err) {
			t.Errorf("put %s back: %v", path, err)
		}
	}
	t.Cleanup(putBack)
	return putBack
}
