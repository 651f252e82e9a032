// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const (
	keyGiB     = ClassGiB + suffixDevices
	keyPercent = ClassPercent + suffixDevices
)

// share is a request by a class of the driver, with amounts as name, amount, name, …
func share(class string, pairs ...string) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class + ".gpu.aliyun.com",
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if len(pairs) > 0 {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
	}
	for i := 0; i < len(pairs); i += 2 {
		exactly.Capacity.Requests[resourceapi.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: exactly}
}

func with(r resourceapi.DeviceRequest, change func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
	change(r.Exactly)
	return r
}

// either is a request with alternatives.
func either(all ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: "gpu"}
	for i, one := range all {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: string(rune('a' + i)), DeviceClassName: one.Exactly.DeviceClassName,
			AllocationMode: one.Exactly.AllocationMode, Count: one.Exactly.Count, Capacity: one.Exactly.Capacity,
		})
	}
	return r
}

func TestWhatAShareIsCharged(t *testing.T) {
	count := func(n int64) func(*resourceapi.ExactDeviceRequest) {
		return func(e *resourceapi.ExactDeviceRequest) { e.Count = n }
	}
	cheating := with(share("gib.quota"), count(1))
	for name, test := range map[string]struct {
		request      resourceapi.DeviceRequest
		gib, percent int64
	}{
		"memory":              {share("memory", "memory", "3Gi"), 3, 0},
		"memory and compute":  {share("core-mem", "memory", "3Gi", "cores", "20"), 3, 20},
		"of two GPUs":         {with(share("cgpu", "memory", "3Gi"), count(2)), 6, 0},
		"compute of two GPUs": {with(share("core-mem", "memory", "3Gi", "cores", "20"), count(2)), 6, 40},
		"no amount":           {share("share"), 1, 0},
		"no default of the API": {with(share("share", "memory", "2Gi"), func(e *resourceapi.ExactDeviceRequest) {
			e.AllocationMode, e.Count = "", 0
		}), 2, 0},
		"of a model":            {share("nvidia-a10", "memory", "4Gi"), 0, 0}, // it is refused
		"of a model and a mode": {share("mps.nvidia-a10", "memory", "4Gi"), 4, 0},
		"all GPUs of a node": {with(share("share", "memory", "2Gi"), func(e *resourceapi.ExactDeviceRequest) {
			e.AllocationMode, e.Count = "All", 0
		}), 64, 0},
		"an administrator": {with(share("share", "memory", "8Gi"), func(e *resourceapi.ExactDeviceRequest) {
			e.AdminAccess = ptr.To(true)
		}), 0, 0},
		"a whole GPU":            {share("exclusive"), 0, 0},
		"a whole GPU of a model": {share("exclusive.nvidia-a10"), 0, 0},
		"linked GPUs":            {share("linked-2.topology"), 0, 0},
		"the larger of two": {either(share("share", "memory", "3Gi"), share("core-mem", "memory", "2Gi", "cores", "30")),
			3, 30},
		"a share or a whole GPU": {either(share("share", "memory", "3Gi"), share("exclusive")), 3, 0},
		"its own count":          {either(share("share", "memory", "3Gi"), cheating), 3, 0},
		"six ways": {either(share("share"), share("share"), share("share"), share("share"), share("share"),
			share("share", "memory", "5Gi")), 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			before := *test.request.DeepCopy()
			requests := Counted([]resourceapi.DeviceRequest{test.request})
			expect.Equal(t, before, test.request, "the request itself")
			var u Usage
			u.Add(requests)
			if gib, percent := u.Of(keyGiB), u.Of(keyPercent); gib != test.gib || percent != test.percent {
				t.Errorf("charged %d GiB and %d percent, want %d and %d", gib, percent, test.gib, test.percent)
			}
			if got := u.Of("requests.deviceclass.resource.kubernetes.io/" + ClassGiB); got != test.gib {
				t.Errorf("charged %d GiB by the other name, want %d", got, test.gib)
			}
			expect.Equal(t, requests, Counted(requests), "the request, counted again,")
		})
	}
}

// What the author asked for comes first, as it was.
func TestARequestStaysWhatItIs(t *testing.T) {
	request := with(share("share", "memory", "3Gi"), func(e *resourceapi.ExactDeviceRequest) {
		e.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "true"}}}
		e.Tolerations = []resourceapi.DeviceToleration{{Key: "k"}}
	})
	got := Counted([]resourceapi.DeviceRequest{request})[0]
	e := request.Exactly
	want := resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "share", DeviceClassName: "share.gpu.aliyun.com", Selectors: e.Selectors, AllocationMode: "ExactCount",
			Count: 1, Tolerations: e.Tolerations, Capacity: e.Capacity},
		{Name: "quota-gib", DeviceClassName: ClassGiB, AllocationMode: "ExactCount", Count: 3},
	}}
	expect.Equal(t, want, got, "the request")
}

func quotaOf(name string, pairs ...string) corev1.ResourceQuota {
	q := corev1.ResourceQuota{}
	q.Name, q.Spec.Hard, q.Status.Used = name, corev1.ResourceList{}, corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 3 {
		key := corev1.ResourceName(pairs[i])
		q.Spec.Hard[key], q.Status.Used[key] = resource.MustParse(pairs[i+1]), resource.MustParse(pairs[i+2])
	}
	q.Status.Hard = q.Spec.Hard
	return q
}

func TestWhichQuotaIsShort(t *testing.T) {
	asking := func(requests ...resourceapi.DeviceRequest) Usage {
		var u Usage
		u.Add(Counted(requests))
		return u
	}
	three := asking(share("memory", "memory", "3Gi"))
	const classKey = "memory.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"
	for name, test := range map[string]struct {
		quotas []corev1.ResourceQuota
		asked  Usage
		want   string
	}{
		"none":            {nil, three, ""},
		"enough":          {[]corev1.ResourceQuota{quotaOf("q", keyGiB, "30", "27")}, three, ""},
		"something else":  {[]corev1.ResourceQuota{quotaOf("q", "pods", "1", "1")}, three, ""},
		"of another kind": {[]corev1.ResourceQuota{quotaOf("q", keyPercent, "30", "30")}, three, ""},
		"memory": {[]corev1.ResourceQuota{quotaOf("q", keyGiB, "30", "28")}, three, "ResourceQuota q allows the namespace " +
			"30 GiB of GPU memory, of which 28 are used, and the pod asks for 3: it goes on by itself"},
		"more than ever": {[]corev1.ResourceQuota{quotaOf("q", keyGiB, "2", "0")}, three,
			"allows the namespace 2 GiB of GPU " +
				"memory, of which 0 are used, and the pod asks for 3: it cannot run unless the quota is raised"},
		"compute": {[]corev1.ResourceQuota{quotaOf("q", keyGiB, "30", "0", keyPercent, "100", "90")},
			asking(share("core-mem", "memory", "3Gi", "cores", "20")), "100 percent of GPUs' compute, of which 90 are used"},
		"the second quota": {[]corev1.ResourceQuota{quotaOf("a", keyGiB, "30", "0"), quotaOf("b", keyGiB, "9", "9")}, three,
			"ResourceQuota b allows"},
		"by the other name": {[]corev1.ResourceQuota{quotaOf("q", prefixRequests+ClassGiB, "3", "1")}, three,
			"3 GiB of GPU memory, of which 1 are used"},
		"as on ACK": {[]corev1.ResourceQuota{quotaOf("q", LineMemory, "6", "4")}, three,
			"6 GiB of GPU memory, of which 4 are used"},
		"compute as on ACK": {[]corev1.ResourceQuota{quotaOf("q", LineCores, "100", "90")},
			asking(share("core-mem", "memory", "3Gi", "cores", "20")), "100 percent of GPUs' compute, of which 90 are used"},
		"as on ACK, and counting nothing": {[]corev1.ResourceQuota{quotaOf("q", LineMemory, "2", "0")}, three, ""},
		"devices of a class": {[]corev1.ResourceQuota{quotaOf("q", classKey, "1", "1")}, three, "1 " + classKey +
			", of which"},
		"GPUs by their resource": {[]corev1.ResourceQuota{quotaOf("q", "requests.nvidia.com/gpu", "4", "3")},
			asking(with(share("exclusive"), func(e *resourceapi.ExactDeviceRequest) { e.Count = 2 })),
			"4 nvidia.com/gpu, of which 3 are used, and the pod asks for 2"},
		"MIG instances by their resource": {
			[]corev1.ResourceQuota{quotaOf("q", "requests.nvidia.com/mig-1g.10gb", "1", "1")}, asking(share("1g.10gb.mig")),
			"1 nvidia.com/mig-1g.10gb, of which 1 are used, and the pod asks for 1"},
		"MIG instances of another profile": {
			[]corev1.ResourceQuota{quotaOf("q", "requests.nvidia.com/mig-2g.20gb", "1", "1")}, asking(share("1g.10gb.mig")), ""},
		"a share is not by that": {[]corev1.ResourceQuota{quotaOf("q", "requests.nvidia.com/gpu", "0", "0")}, three, ""},
		"claims":                 {[]corev1.ResourceQuota{quotaOf("q", nameClaims, "1", "1")}, three, nameClaims},
	} {
		t.Run(name, func(t *testing.T) {
			room := NewRoom(test.quotas)
			got := room.Take(test.asked)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Who goes on takes what others do not get then; who does not takes nothing.
func TestRoomIsTakenOnce(t *testing.T) {
	asking := func(gib string) Usage {
		var u Usage
		u.Add(Counted([]resourceapi.DeviceRequest{share("memory", "memory", gib)}))
		return u
	}
	room := NewRoom([]corev1.ResourceQuota{quotaOf("q", keyGiB, "10", "0")})
	var got []bool
	for _, gib := range []string{"8Gi", "3Gi", "2Gi", "1Gi"} {
		got = append(got, room.Take(asking(gib)) == "")
	}
	expect.Equal(t, []bool{true, false, true, false}, got, "who goes on")
	if !room.Any() || !room.Amounts() {
		t.Error("the quota is not seen to be about claims, and about amounts")
	}
}

// A quota as on ACK counts where the option is installed, which is seen by that it does.
func TestAmountsByAQuotaAsOnACK(t *testing.T) {
	for used, want := range map[string]bool{"0": false, "4": true} {
		expect.Equal(t, want, NewRoom([]corev1.ResourceQuota{quotaOf("q", LineMemory, "6", used)}).Amounts(),
			"with %s used claims are counted", used)
	}
}
