// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// The status of a claim says which GPU it has, how much of it, and how that is; when the
// claim's pod has ended it says nothing any more.
func TestStatusOfClaims(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "kill")
	ns := cluster.Namespace(t)
	ns.Claim(t, "mine", harness.Requests(harness.Share("gpu", "3Gi")))
	cluster.Publishes(t, "kill", harness.DevicesIn("share")...)
	shown := func(what string, condition func(devices []resourceapi.AllocatedDeviceStatus) error) {
		t.Helper()
		harness.Becomes(t, ns.Client.ResourceV1().ResourceClaims(ns.Name), "mine", "status.devices of the claim: "+what,
			func(claim *resourceapi.ResourceClaim) error { return condition(claim.Status.Devices) })
	}
	says := func(want ...string) func([]resourceapi.AllocatedDeviceStatus) error {
		return func(devices []resourceapi.AllocatedDeviceStatus) error {
			if len(devices) != 1 {
				return fmt.Errorf("there are %d devices, want 1", len(devices))
			}
			var got []string
			for _, c := range devices[0].Conditions {
				got = append(got, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Message))
			}
			if text := strings.Join(got, "; "); !harness.ContainsAll(text, want) {
				return fmt.Errorf("it says %q, want %q", text, want)
			}
			return nil
		}
	}
	ns.Run(t, harness.Pod("first", "kill", harness.FromClaim("mine")))
	g := ns.Granted(t, "first")[0].GPU
	shown("it is well", says("Ready=True", "Healthy=True"))
	shown("what it has", func(devices []resourceapi.AllocatedDeviceStatus) error {
		var data v1alpha1.DeviceStatus
		if err := json.Unmarshal(devices[0].Data.Raw, &data); err != nil {
			return err
		}
		if len(data.GPUs) != 1 || data.GPUs[0].UUID != g.UUID || data.MemoryMiB != 3226 || data.Mode != "share" ||
			data.IsolationLevel != "none" {
			return fmt.Errorf("it has %+v", data)
		}
		if devices[0].ShareID == nil || devices[0].Device != g.Device {
			return errors.New("it names another device, or no share")
		}
		return nil
	})
	findsItsMetadata(t, ns, "first", g.UUID)
	// What is broken is whole after the test, whatever becomes of it.
	cluster.ChangeMachine(t, "kill", func(*sim.Spec) {})
	cluster.Tool(t, "node", "fault", "kill", fmt.Sprintf("gpu-%d", g.Index), "xid=79")
	shown("its GPU failed", says("Ready=True", "Healthy=False", "XID 79"))
	cluster.Tool(t, "node", "fault", "kill", fmt.Sprintf("gpu-%d", g.Index), "heal")
	shown("its GPU has recovered", says("Healthy=True"))

	claim := harness.Get(t, ns.Client.ResourceV1().ResourceClaims(ns.Name), "mine")
	files := cluster.NodeFile("kill", kubeletplugin.KubeletPluginsDir, v1alpha1.DriverName, "metadata", string(claim.UID))
	if _, err := os.Stat(files); err != nil {
		t.Errorf("where the node has the container's metadata: %v", err)
	}
	ns.Delete(t, "first")
	harness.Eventually(t, "the metadata to be gone", func(context.Context) error {
		if _, err := os.Stat(files); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %v", files, err)
		}
		return nil
	})
	shown("nobody has it", func(devices []resourceapi.AllocatedDeviceStatus) error {
		if len(devices) > 0 {
			return fmt.Errorf("there are %d devices, want none", len(devices))
		}
		return nil
	})
}

// findsItsMetadata checks that the pod's container finds, where Kubernetes has it for devices of
// any kind, which GPU it has and how much of it.
func findsItsMetadata(t *testing.T, ns *harness.Namespace, pod, uuid string) {
	t.Helper()
	content, err := ns.Exec(t, pod, "main", "cat", metadata.ResourceClaimFilePath(v1alpha1.DriverName, "mine", "gpu"))
	expect.NoError(t, err)
	var read metadata.DeviceMetadata
	if err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(strings.NewReader(content)), &read); err != nil {
		t.Fatalf("%v: %s", err, content)
	}
	if len(read.Requests) != 1 || len(read.Requests[0].Devices) != 1 {
		t.Fatalf("the container finds %+v", read)
	}
	has := read.Requests[0].Devices[0].Attributes
	if got := ptr.Deref(has[v1alpha1.AttrUUID].StringValue, ""); got != uuid {
		t.Errorf("the container finds GPU %q, want %q", got, uuid)
	}
	if got := ptr.Deref(has[v1alpha1.MetaGrantedMemoryMiB].IntValue, 0); got != 3226 {
		t.Errorf("the container finds %d MiB, want 3226", got)
	}
}
