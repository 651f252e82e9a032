// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func cards(index int) (gpu.GPU, bool) {
	if index > 1 {
		return gpu.GPU{}, false
	}
	return gpu.GPU{Index: index, UUID: []string{"GPU-a", "GPU-b"}[index], Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130},
		true
}

func allocated(results []resourceapi.DeviceRequestAllocationResult,
	configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results, Config: configs},
	}}}
}

func share(request, device, memory string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: "gpu.aliyun.com", Pool: "n1/gpu", Device: device, ShareID: ptr.To(types.UID("share-1")),
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse(memory), "cores": resource.MustParse("0"), "slots": resource.MustParse("1"),
		},
	}
}

func whole(request, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: "gpu.aliyun.com", Pool: "n1/gpu",
		Device: device}
}

func opaque(source resourceapi.AllocationConfigSource, driver, body string,
	requests ...string) resourceapi.DeviceAllocationConfiguration {
	raw := `{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig"` + body + `}`
	return resourceapi.DeviceAllocationConfiguration{Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}},
		}}
}

const (
	fromClass = resourceapi.AllocationConfigSourceClass
	fromClaim = resourceapi.AllocationConfigSourceClaim
)

func TestGrants(t *testing.T) {
	other := whole("nic", "eth0")
	other.Driver = "nic.example.com"
	c := allocated([]resourceapi.DeviceRequestAllocationResult{other, share("a", "gpu-0-share", "3Gi"),
		whole("b/first", "gpu-1")})
	got, err := Grants(c, "n1/gpu", cards)
	if err != nil {
		t.Fatal(err)
	}
	want := []Grant{
		{Request: "a", Pool: "n1/gpu", Device: "gpu-0-share", ShareID: "share-1", Mode: mode.Share, Units: 3, Slots: 1,
			Card: Card{Index: 0, UUID: "GPU-a", Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}, Config: v1alpha1.Default()},
		{Request: "b/first", Pool: "n1/gpu", Device: "gpu-1", Mode: mode.Exclusive,
			Card: Card{Index: 1, UUID: "GPU-b", Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}, Config: v1alpha1.Default()},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("grants (-want +got):\n%s", diff)
	}
}

// A linked set is one result and a grant for each of its cards.
func TestGrantsOfASet(t *testing.T) {
	c := allocated([]resourceapi.DeviceRequestAllocationResult{whole("a", "gpus-0-1"), whole("b", "gpu-1-topology")})
	got, err := Grants(c, "n1/gpu", cards)
	if err != nil {
		t.Fatal(err)
	}
	var uuids []string
	for _, g := range got {
		if g.Mode != mode.Topology {
			t.Errorf("%s is in mode %s", g.Device, g.Mode)
		}
		uuids = append(uuids, g.Card.UUID)
	}
	if diff := cmp.Diff([]string{"GPU-a", "GPU-b", "GPU-b"}, uuids); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if results := Results(got); len(results) != 2 || len(results[0]) != 2 || len(results[1]) != 1 {
		t.Errorf("grouped by result: %+v", results)
	}
}

func TestGrantsConfigPrecedence(t *testing.T) {
	c := allocated([]resourceapi.DeviceRequestAllocationResult{share("a", "gpu-0-share", "3Gi"),
		share("b", "gpu-0-share", "3Gi")},
		opaque(fromClass, "gpu.aliyun.com", `,"disableIsolation":true,"env":"None"`),
		opaque(fromClaim, "gpu.aliyun.com", `,"env":"Legacy"`, "b"),
		opaque(fromClaim, "nic.example.com", `,"mtu":9000`))
	got, err := Grants(c, "n1/gpu", cards)
	if err != nil {
		t.Fatal(err)
	}
	if a := got[0].Config; !a.IsolationDisabled() || a.LegacyEnv() {
		t.Errorf("request a does not follow its class: %+v", a)
	}
	if b := got[1].Config; !b.IsolationDisabled() || !b.LegacyEnv() {
		t.Errorf("request b: the claim's env does not win over the class's, or the class's disableIsolation is lost: %+v", b)
	}
}

func TestGrantsRejects(t *testing.T) {
	noShareID := share("a", "gpu-0-share", "3Gi")
	noShareID.ShareID = nil
	noSlot := share("a", "gpu-0-share", "3Gi")
	noSlot.ConsumedCapacity["slots"] = resource.MustParse("0")
	otherNode := whole("a", "gpu-0")
	otherNode.Pool = "n2/gpu"
	foreign := whole("a", "eth0")
	foreign.Driver = "nic.example.com"
	one := func(r resourceapi.DeviceRequestAllocationResult) []resourceapi.DeviceRequestAllocationResult {
		return []resourceapi.DeviceRequestAllocationResult{r}
	}
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		want  string
	}{
		"not allocated":        {&resourceapi.ResourceClaim{}, "not allocated"},
		"nothing of ours":      {allocated(one(foreign)), "no device of driver gpu.aliyun.com"},
		"pool of another node": {allocated(one(otherNode)), `pool "n2/gpu"`},
		"unknown device":       {allocated(one(whole("a", "gpu-x"))), `"gpu-x"`},
		"GPU gone":             {allocated(one(whole("a", "gpu-7"))), "GPU 7 is no longer usable"},
		"one of a set gone":    {allocated(one(whole("a", "gpus-1-7"))), `device "gpus-1-7": GPU 7 is no longer usable`},
		"no share ID":          {allocated(one(noShareID)), "DRAConsumableCapacity"},
		"no memory":            {allocated(one(share("a", "gpu-0-share", "0"))), "at least 1Gi"},
		"fraction of a Gi":     {allocated(one(share("a", "gpu-0-share", "1536Mi"))), "whole number of Gi"},
		"negative memory":      {allocated(one(share("a", "gpu-0-share", "-1Gi"))), "at least 1Gi"},
		"no slot":              {allocated(one(noSlot)), "slots"},
		"unknown field": {allocated(one(whole("a", "gpu-0")), opaque(fromClaim, "gpu.aliyun.com", `,"memoryLimit":3`)),
			`request "a", device "gpu-0": opaque config from the claim: decode GpuConfig: unknown field "memoryLimit"`},
		"unknown field in the class": {allocated(one(whole("a", "gpu-0")), opaque(fromClass, "gpu.aliyun.com", `,"x":3`)),
			"opaque config from the DeviceClass"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Grants(tc.claim, "n1/gpu", cards)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that contains %q", err, tc.want)
			}
		})
	}
}

func TestAdminGrantMayTakeNothing(t *testing.T) {
	r := share("monitor", "gpu-0-share", "0")
	r.ConsumedCapacity["slots"] = resource.MustParse("0")
	r.AdminAccess = ptr.To(true)
	got, err := Grants(allocated([]resourceapi.DeviceRequestAllocationResult{r}), "n1/gpu", cards)
	if err != nil || !got[0].Admin || got[0].Units != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}
