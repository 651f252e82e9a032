// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const migNode = "mig"

// migDevices are what the node offers of demo/machines/migx4.yaml.
var migDevices = []string{"gpu-2", "gpu-3", "gpu-0-mig-3g-40gb-0", "gpu-0-mig-2g-20gb-4", "gpu-0-mig-1g-10gb-6",
	"gpu-1-mig-1g-10gb-0", "gpu-1-mig-1g-10gb-me-1", "gpu-1-mig-2g-20gb-2", "gpu-1-mig-3g-40gb-4"}

// capabilities are the minor numbers of the device nodes of each instance: that of the GPU instance, then that
// of its compute instance. By NVIDIA's user guide the ids of an A100's GPU instances follow their places, and
// the numbers the ids.
var capabilities = func() map[string][]int {
	ids := map[string][2]int{"gpu-0-mig-3g-40gb-0": {0, 2}, "gpu-0-mig-2g-20gb-4": {0, 5}, "gpu-0-mig-1g-10gb-6": {0, 13},
		"gpu-1-mig-1g-10gb-0": {1, 7}, "gpu-1-mig-1g-10gb-me-1": {1, 8}, "gpu-1-mig-2g-20gb-2": {1, 4},
		"gpu-1-mig-3g-40gb-4": {1, 1}}
	out := map[string][]int{}
	for device, id := range ids {
		minor := 3 + 135*id[0] + 9*id[1]
		out[device] = []int{minor, minor + 1}
	}
	return out
}()

// capabilityMajor is the major number of capabilities on simulated nodes.
const capabilityMajor = 62

// holdsInstance checks that a pod has one instance of the node, and returns its device.
func holdsInstance(t *testing.T, ns *harness.Namespace, pod, profile string) string {
	t.Helper()
	grants := ns.Granted(t, pod)
	if len(grants) != 1 || !strings.Contains(grants[0].GPU.Device, "-mig-"+profile+"-") {
		t.Fatalf("pod %s was granted %+v, want one instance of %s", pod, grants, profile)
	}
	return grants[0].GPU.Device
}

// seesItsInstance checks that a container has the nodes of its instance and none of another's, neither in
// /dev nor by making them itself.
func seesItsInstance(t *testing.T, ns *harness.Namespace, pod, device string) {
	t.Helper()
	ns.SeesItsGPUs(t, pod, "main", ns.Granted(t, pod))
	output, err := ns.Exec(t, pod, "main", "devices")
	expect.NoError(t, err)
	var got, want []string
	for line := range strings.Lines(output) {
		if path, _, _ := strings.Cut(line, " "); strings.Contains(path, "nvidia-caps") {
			got = append(got, path)
		}
	}
	for _, minor := range capabilities[device] {
		want = append(want, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
	}
	slices.Sort(got)
	slices.Sort(want)
	expect.Equal(t, want, got, "capabilities in /dev of pod %s", pod)
	reach := func(minor int) string {
		_, err := ns.Exec(t, pod, "main", "reach", fmt.Sprintf("%d:%d", capabilityMajor, minor))
		if err == nil || strings.Contains(err.Error(), "no such device or address") {
			return "" // behind the node of a simulated capability is no driver
		}
		return err.Error()
	}
	for other, minors := range capabilities {
		for _, minor := range minors {
			switch why := reach(minor); {
			case other == device && why != "":
				t.Errorf("pod %s cannot open the capability of its instance: %s", pod, why)
			case other != device && !strings.Contains(why, "operation not permitted"):
				t.Errorf("pod %s with %s can open the capability of %s (%q)", pod, device, other, why)
			}
		}
	}
	for _, minor := range []int{1, 2} {
		if why := reach(minor); !strings.Contains(why, "operation not permitted") {
			t.Errorf("pod %s can configure or monitor MIG (%q)", pod, why)
		}
	}
}

// Claims for instances, pods in the words of NVIDIA's device plugin and whole GPUs beside each other: each
// gets what it asked for, and nobody reaches what is another's.
func TestMIGInstancesAreHandedOut(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, migNode)
	cluster.Publishes(t, migNode, migDevices...)
	for _, profile := range []string{"1g.10gb", "1g.10gb.me", "2g.20gb", "3g.40gb"} {
		classComes(t, profile+".mig")
	}
	ns := cluster.Namespace(t)
	ns.Template(t, "half", harness.Requests(harness.OfClass("3g.40gb.mig")))
	ns.Template(t, "any", harness.Requests(harness.Matching(harness.OfClass("mig"),
		`device.attributes["gpu.aliyun.com"].profile == "1g.10gb+me"`)))
	ns.Run(t,
		harness.Pod("claim", migNode, harness.FromTemplate("half")),
		harness.Pod("legacy", migNode, harness.Limit("nvidia.com/mig-3g.40gb", "1")),
		harness.Pod("small", migNode, harness.Limit("nvidia.com/mig-1g.10gb", "1")),
		harness.Pod("media", migNode, harness.FromTemplate("any")),
		harness.Pod("whole", migNode, harness.Limit("nvidia.com/gpu", "1")),
	)
	devices := map[string]bool{}
	for pod, profile := range map[string]string{"claim": "3g-40gb", "legacy": "3g-40gb", "small": "1g-10gb",
		"media": "1g-10gb-me"} {
		device := holdsInstance(t, ns, pod, profile)
		if devices[device] {
			t.Errorf("two pods have %s", device)
		}
		devices[device] = true
		seesItsInstance(t, ns, pod, device)
		ns.HasEnv(t, pod, "main", map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"})
	}
	haveGPUsOfTheirOwn(t, ns, map[string]int{"whole": 1})

	ns.Create(t, harness.Pod("third", migNode, harness.FromTemplate("half")))
	ns.WaitUnschedulable(t, "third", noRoom)
}

// The status of a claim names the instance, as its container's metadata does.
func TestStatusOfMIGClaims(t *testing.T) {
	t.Parallel()
	cluster.Share(t, migNode)
	ns := cluster.Namespace(t)
	ns.Claim(t, "mine", harness.Requests(harness.OfClass("2g.20gb.mig")))
	ns.Run(t, harness.Pod("a", migNode, harness.FromClaim("mine")))
	device := holdsInstance(t, ns, "a", "2g-20gb")
	gpu := ns.Granted(t, "a")[0].GPU
	const what = "the status of the claim to name the instance"
	claims := ns.Client.ResourceV1().ResourceClaims(ns.Name)
	harness.Becomes(t, claims, "mine", what, func(claim *resourceapi.ResourceClaim) error {
		if len(claim.Status.Devices) != 1 || claim.Status.Devices[0].Data == nil {
			return fmt.Errorf("it says %+v", claim.Status.Devices)
		}
		var data v1alpha1.DeviceStatus
		if err := json.Unmarshal(claim.Status.Devices[0].Data.Raw, &data); err != nil {
			return err
		}
		if g := data.GPUs; data.Mode != "mig" || len(g) != 1 || g[0].UUID != gpu.UUID || g[0].MIG == nil ||
			g[0].MIG.Profile != "2g.20gb" || !strings.HasSuffix(device, fmt.Sprint(g[0].MIG.PlacementStart)) {
			return fmt.Errorf("it says %s", claim.Status.Devices[0].Data.Raw)
		}
		return nil
	})
}
