// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// machine has two whole GPUs, and one in MIG mode.
func machine() *gpu.Machine {
	m := &gpu.Machine{}
	for i, uuid := range []string{"GPU-a", "GPU-b"} {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: uuid, Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130})
	}
	m.Partitioned = []gpu.Partitioned{{
		GPU: gpu.GPU{Index: 2, UUID: "GPU-c", Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920},
		Instances: []gpu.Instance{
			{InstanceID: gpu.InstanceID{GI: 2}, UUID: "MIG-1", ProfileID: 9, Profile: "3g.40gb", Size: 4, MemoryMiB: 40192},
			{InstanceID: gpu.InstanceID{GI: 11, CI: gpu.NoCI}, ProfileID: 19, Profile: "1g.10gb", Start: 4, Size: 1,
				LeftOut: "it has no compute instance"},
			{InstanceID: gpu.InstanceID{GI: 13}, UUID: "MIG-2", ProfileID: 20, Profile: "1g.10gb+me", Start: 6, Size: 1,
				MemoryMiB: 9728},
		}}}
	return m
}

// An instance is what it is of its GPU; memory and UUID are its own.
func TestGrantOfAnInstance(t *testing.T) {
	got, err := Grants(allocated([]resourceapi.DeviceRequestAllocationResult{whole("a", "gpu-2-mig-1g-10gb-me-6")}),
		"n1/gpu", machine())
	expect.NoError(t, err)
	want := []Grant{{Request: "a", Pool: "n1/gpu", Device: "gpu-2-mig-1g-10gb-me-6", Mode: mode.MIG,
		GPU: GPU{Index: 2, UUID: "MIG-2", Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 9728, MIG: &Instance{
			ParentUUID: "GPU-c", Profile: "1g.10gb+me", ProfileID: 20, GI: 13, Start: 6, Size: 1}},
		Config: v1alpha1.Default()}}
	expect.Equal(t, want, got, "grants")
	expect.Equal(t, "GPU 2's 1g.10gb+me at slice 6", got[0].GPU.String(), "it is called")
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
	got, err := Grants(c, "n1/gpu", machine())
	expect.NoError(t, err)
	want := []Grant{
		{Request: "a", Pool: "n1/gpu", Device: "gpu-0-share", ShareID: "share-1", Mode: mode.Share, Units: 3, Slots: 1,
			GPU: GPU{Index: 0, UUID: "GPU-a", Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}, Config: v1alpha1.Default()},
		{Request: "b/first", Pool: "n1/gpu", Device: "gpu-1", Mode: mode.Exclusive,
			GPU: GPU{Index: 1, UUID: "GPU-b", Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}, Config: v1alpha1.Default()},
	}
	expect.Equal(t, want, got, "grants")
}

// A linked set is one result and a grant for each of its GPUs.
func TestGrantsOfASet(t *testing.T) {
	c := allocated([]resourceapi.DeviceRequestAllocationResult{whole("a", "gpus-0-1"), whole("b", "gpu-1-topology")})
	got, err := Grants(c, "n1/gpu", machine())
	expect.NoError(t, err)
	var uuids []string
	for _, g := range got {
		expect.Equal(t, mode.Topology, g.Mode, "%s is in mode", g.Device)
		uuids = append(uuids, g.GPU.UUID)
	}
	expect.Equal(t, []string{"GPU-a", "GPU-b", "GPU-b"}, uuids, "GPUs")
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
	got, err := Grants(c, "n1/gpu", machine())
	expect.NoError(t, err)
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
		"instance gone": {allocated(one(whole("a", "gpu-2-mig-2g-20gb-4"))),
			`device "gpu-2-mig-2g-20gb-4": GPU 2 has no such MIG instance any more: somebody cut it again`},
		"GPU not in MIG mode": {allocated(one(whole("a", "gpu-1-mig-2g-20gb-4"))), "GPU 1 is not in MIG mode any more"},
		"whole, in MIG mode":  {allocated(one(whole("a", "gpu-2"))), "GPU 2 is no longer usable"},
		"instance without a compute instance": {allocated(one(whole("a", "gpu-2-mig-1g-10gb-4"))),
			"GPU 2's MIG instance 1g.10gb at slice 4 cannot be used: it has no compute instance"},
		"a view, taken as a GPU": {allocated(one(whole("a", "gpu-1-monitor"))),
			`device "gpu-1-monitor": it shows a GPU to claims with adminAccess and gives nothing of it`},
		"no share ID":      {allocated(one(noShareID)), "DRAConsumableCapacity"},
		"no memory":        {allocated(one(share("a", "gpu-0-share", "0"))), "at least 1Gi"},
		"fraction of a Gi": {allocated(one(share("a", "gpu-0-share", "1536Mi"))), "whole number of Gi"},
		"negative memory":  {allocated(one(share("a", "gpu-0-share", "-1Gi"))), "at least 1Gi"},
		"no slot":          {allocated(one(noSlot)), "slots"},
		"unknown field": {allocated(one(whole("a", "gpu-0")), opaque(fromClaim, "gpu.aliyun.com", `,"memoryLimit":3`)),
			`request "a", device "gpu-0": opaque config from the claim: decode GpuConfig: unknown field "memoryLimit"`},
		"unknown field in the class": {allocated(one(whole("a", "gpu-0")), opaque(fromClass, "gpu.aliyun.com", `,"x":3`)),
			"opaque config from the DeviceClass"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Grants(tc.claim, "n1/gpu", machine())
			expect.Error(t, err, tc.want)
		})
	}
}

func TestAdminGrantMayTakeNothing(t *testing.T) {
	r := share("monitor", "gpu-0-share", "0")
	r.ConsumedCapacity["slots"] = resource.MustParse("0")
	r.AdminAccess = ptr.To(true)
	got, err := Grants(allocated([]resourceapi.DeviceRequestAllocationResult{r}), "n1/gpu", machine())
	if err != nil || !got[0].Admin || got[0].Units != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A monitor has of a GPU what an administrator's grant of the whole of it has.
func TestGrantOfAMonitor(t *testing.T) {
	r := whole("monitor", "gpu-1-monitor")
	r.AdminAccess = ptr.To(true)
	got, err := Grants(allocated([]resourceapi.DeviceRequestAllocationResult{r}), "n1/gpu", machine())
	if err != nil || len(got) != 1 || !got[0].Admin || got[0].Mode != mode.Exclusive || got[0].GPU.UUID != "GPU-b" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// After a boot without one of them GPUs have other indices than those by which their devices are named.
func TestCurrent(t *testing.T) {
	shifted := &gpu.Machine{
		GPUs:        []gpu.GPU{{Index: 0, UUID: "a"}, {Index: 1, UUID: "c"}},
		Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 2, UUID: "d"}}},
		Faults:      []gpu.Fault{{Index: 3, UUID: "e"}, {Index: 4}},
	}
	for name, test := range map[string]struct {
		granted []GPU
		machine *gpu.Machine
		want    []int
	}{
		"as it was":            {[]GPU{{Index: 0, UUID: "a"}}, shifted, []int{0}},
		"another one":          {[]GPU{{Index: 2, UUID: "c"}}, shifted, []int{1}},
		"some of a set":        {[]GPU{{Index: 0, UUID: "a"}, {Index: 2, UUID: "c"}}, shifted, []int{0, 1}},
		"its instance":         {[]GPU{{Index: 3, UUID: "MIG-x", MIG: &Instance{ParentUUID: "d"}}}, shifted, []int{2}},
		"one still to be made": {[]GPU{{Index: 3, MIG: &Instance{ParentUUID: "d", Made: true}}}, shifted, []int{2}},
		"lost":                 {[]GPU{{Index: 4, UUID: "e"}}, shifted, []int{3}},
		"gone":                 {[]GPU{{Index: 1, UUID: "b"}}, shifted, []int{1}},
		"unread":               {[]GPU{{Index: 2, UUID: "c"}}, nil, []int{2}},
		"nothing":              {nil, shifted, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var grants, before []Grant
			for _, g := range test.granted {
				grants, before = append(grants, Grant{Device: "gpu", GPU: g}), append(before, Grant{Device: "gpu", GPU: g})
			}
			var got []int
			for i, g := range Current(grants, test.machine) {
				got = append(got, g.GPU.Index)
				if g.GPU.UUID != test.granted[i].UUID || g.Device != "gpu" {
					t.Errorf("the grant of %+v is %+v", test.granted[i], g)
				}
			}
			expect.Equal(t, test.want, got, "indices")
			expect.Equal(t, before, grants, "what was granted has changed")
		})
	}
}

func TestParseLimitsOffBy(t *testing.T) {
	for value, want := range map[string]LimitsOffBy{"": LimitsOffByClaims, "claims": LimitsOffByClaims,
		"classes": LimitsOffByClasses, "nodes": LimitsOffByNodes} {
		if got, err := ParseLimitsOffBy(value); err != nil || got != want {
			t.Errorf("%q: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"class", "Nodes", "nobody"} {
		if got, err := ParseLimitsOffBy(value); err == nil {
			t.Errorf("%q is taken for %q", value, got)
		}
	}
}

func TestToleratesSwitch(t *testing.T) {
	result := func(pool string, tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: "gpu.aliyun.com", Pool: pool, Device: "gpu-0",
			Tolerations: tolerations}
	}
	admin := func(r resourceapi.DeviceRequestAllocationResult) resourceapi.DeviceRequestAllocationResult {
		r.AdminAccess = ptr.To(true)
		return r
	}
	instance := func(r resourceapi.DeviceRequestAllocationResult) resourceapi.DeviceRequestAllocationResult {
		r.Device = "gpu-1-mig-1g-10gb-0"
		return r
	}
	everything := resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists}
	switching := resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists,
		Key: "gpu.aliyun.com/mode-switch", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	other := resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists,
		Key: "gpu.aliyun.com/isolation-unavailable"}
	for name, test := range map[string]struct {
		results []resourceapi.DeviceRequestAllocationResult
		want    bool
	}{
		"nothing":       {nil, false},
		"no toleration": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu")}, false},
		"everything":    {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", everything)}, true},
		"the switch": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", other, switching)},
			true},
		"something else": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", other)}, false},
		"one of two does not": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", everything), result(
			"n1/gpu")}, false},
		"another node's does not": {[]resourceapi.DeviceRequestAllocationResult{result("n1/gpu", everything), result(
			"n2/gpu")}, true},
		"an administrator's": {[]resourceapi.DeviceRequestAllocationResult{admin(result("n1/gpu", everything))},
			false},
		"an administrator's does not": {[]resourceapi.DeviceRequestAllocationResult{admin(result("n1/gpu")), result("n1/gpu",
			everything)}, true},
		"a MIG instance": {[]resourceapi.DeviceRequestAllocationResult{instance(result("n1/gpu", everything))}, false},
		"a MIG instance does not": {[]resourceapi.DeviceRequestAllocationResult{instance(result("n1/gpu")), result("n1/gpu",
			everything)}, true},
		"only of another node's GPUs": {[]resourceapi.DeviceRequestAllocationResult{result("n2/gpu", everything)}, false},
	} {
		c := &resourceapi.ResourceClaim{}
		if test.results != nil {
			c.Status.Allocation = &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: test.results}}
		}
		expect.Equal(t, test.want, ToleratesSwitch(c, "n1/gpu"), "%s", name)
	}
}

// asks is a configuration of a time slice; empty is none.
func asks(source resourceapi.AllocationConfigSource, slice string) []resourceapi.DeviceAllocationConfiguration {
	if slice == "" {
		return nil
	}
	raw := `{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","timeSlice":"` + slice + `"}`
	return []resourceapi.DeviceAllocationConfiguration{{Source: source,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(raw)}}}}}
}

func TestAskTimeSlices(t *testing.T) {
	for name, tc := range map[string]struct {
		mode               mode.Mode
		admin              bool
		claim, class, node string
		want               v1alpha1.TimeSlice
		err                string
	}{
		"nothing":                        {mode: mode.Exclusive},
		"whole GPU, claim":               {mode: mode.Exclusive, claim: "Short", want: "Short"},
		"whole GPU, claim over class":    {mode: mode.Topology, claim: "Long", class: "Short", want: "Long"},
		"whole GPU, claim over node":     {mode: mode.Exclusive, claim: "Default", node: "Short"},
		"whole GPU, node":                {mode: mode.Exclusive, node: "Medium", want: "Medium"},
		"share, class":                   {mode: mode.Share, class: "Medium", want: "Medium"},
		"share, node":                    {mode: mode.Share, node: "Long", want: "Long"},
		"share, class over node":         {mode: mode.Share, class: "Default", node: "Long"},
		"share, claim":                   {mode: mode.Share, claim: "Short", err: "an administrator"},
		"share, claim against class":     {mode: mode.Share, claim: "Short", class: "Long", err: "timeSlice is Short"},
		"share, claim as class":          {mode: mode.Share, claim: "Short", class: "Short", want: "Short"},
		"share, claim as node":           {mode: mode.Share, claim: "Short", node: "Short", want: "Short"},
		"share, claim that asks nothing": {mode: mode.Share, claim: "Default", node: "Long", want: "Long"},
		"limited share, node":            {mode: mode.MPS, node: "Short"},
		"limited share, claim":           {mode: mode.CGPU, claim: "Short", err: "only whole GPUs"},
		"MIG instance, class":            {mode: mode.MIG, class: "Long", err: "of mode mig"},
		"administrator":                  {mode: mode.Exclusive, admin: true, node: "Short"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
			c.Status.Allocation.Devices.Config = append(asks(resourceapi.AllocationConfigSourceClass, tc.class),
				asks(resourceapi.AllocationConfigSourceClaim, tc.claim)...)
			config, err := configFor(c.Status.Allocation.Devices.Config, resourceapi.DeviceRequestAllocationResult{Request: "r"})
			expect.NoError(t, err)
			grants := []Grant{{Request: "r", Mode: tc.mode, Admin: tc.admin, Config: config}}
			node, err := mode.TimeSliceFromLabels(map[string]string{v1alpha1.LabelTimeSlice: tc.node})
			expect.NoError(t, err)
			err = AskTimeSlices(c, grants, node)
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("error %v, want one that contains %q", err, tc.err)
			}
			expect.Equal(t, tc.want, grants[0].TimeSlice, "it asks for")
		})
	}
}

func TestTheShortestTimeSliceCounts(t *testing.T) {
	of := func(uuid string, slice v1alpha1.TimeSlice) Grant {
		return Grant{GPU: GPU{UUID: uuid}, TimeSlice: slice}
	}
	got := TimeSlices([]Grant{of("a", "Long"), of("a", "Short"), of("a", "Medium"), of("a", ""), of("b", ""),
		of("c", "Medium"), of("c", "Long")})
	want := map[string]v1alpha1.TimeSlice{"a": "Short", "c": "Medium"}
	expect.Equal(t, want, got, "time slices")
}

func TestLabelThatIsNoTimeSlice(t *testing.T) {
	slice, err := mode.TimeSliceFromLabels(map[string]string{v1alpha1.LabelTimeSlice: "short"})
	expect.Error(t, err, `gpu.aliyun.com/time-slice: "short" is no time slice`)
	expect.Equal(t, v1alpha1.TimeSliceDefault, slice, "it comes to")
}
