// SPDX-License-Identifier: Apache-2.0

package scheduling_test

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// eight returns what a node with eight GPUs publishes, all with these taints.
func eight(taints ...resourceapi.DeviceTaint) *resourceapi.ResourceSlice {
	slice := pool("n")
	slice.Spec.Devices = nil
	for i := range 8 {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprint("gpu-", i), Taints: taints,
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				v1alpha1.AttrIndex: {IntValue: ptr.To(int64(i))}}})
	}
	return slice
}

const anyGPU = "gpu.example.com"

// asking returns a claim with requests for so many GPUs each.
func asking(counts ...int64) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", len(counts))}}
	for i, n := range counts {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: fmt.Sprint("r-", i), Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: anyGPU, Count: n,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount}})
	}
	return claim
}

// EndsInTime judges the longest search of a node, not one that happens to succeed: a node with nine GPUs has nine
// single GPUs at once, but takes 8! ways if the last is gone.
func TestEndsInTime(t *testing.T) {
	testneeds.Time(t)
	type claims = []*resourceapi.ResourceClaim
	ones := func(n int) *resourceapi.ResourceClaim { return asking(slices.Repeat([]int64{1}, n)...) }
	all := ones(8)
	all.Spec.Devices.Requests[7].Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	alternatives := ones(7)
	alternatives.Spec.Devices.Requests = append(alternatives.Spec.Devices.Requests, resourceapi.DeviceRequest{
		Name: "last", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "two", DeviceClassName: anyGPU, Count: 2, AllocationMode: resourceapi.DeviceAllocationModeExactCount},
			{Name: "one", DeviceClassName: anyGPU, Count: 1, AllocationMode: resourceapi.DeviceAllocationModeExactCount}}})
	selecting := ones(1)
	selecting.Spec.Devices.Requests[0].Exactly.Selectors = make([]resourceapi.DeviceSelector, 1)
	selecting.Spec.Devices.Requests[0].Exactly.Selectors[0].CEL = &resourceapi.CELDeviceSelector{
		Expression: "lists.range(80).all(i, lists.range(80).all(j, lists.range(10).all(k, i + j + k >= 0)))"}
	unlike := ones(8)
	unlike.Spec.Devices.Requests[7].Exactly.Selectors = []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver != ''"}}}
	classless := ones(9)
	classless.Spec.Devices.Requests[8].Exactly.DeviceClassName = "missing.example.com"
	beside := func(claim *resourceapi.ResourceClaim, at int) *resourceapi.ResourceClaim {
		nic := asking(1).Spec.Devices.Requests[0]
		nic.Name, nic.Exactly.DeviceClassName = "nic", "nic.example.com"
		claim.Spec.Devices.Requests = slices.Insert(claim.Spec.Devices.Requests, at, nic)
		return claim
	}
	tainted := resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	for name, test := range map[string]struct {
		claims claims
		on     *resourceapi.ResourceSlice
		want   bool
	}{
		"nothing":                      {nil, eight(), true},
		"a claim without requests":     {claims{asking()}, eight(), true},
		"one GPU":                      {claims{ones(1)}, eight(), true},
		"all GPUs by a count":          {claims{asking(8)}, eight(), true},
		"single GPUs":                  {claims{ones(7)}, eight(), true},
		"all of them, one by one":      {claims{ones(8)}, eight(), true},
		"unlike each other":            {claims{unlike}, eight(), false},
		"one more than there are":      {claims{ones(9)}, eight(), false},
		"while all are closed":         {claims{ones(9)}, eight(tainted), false},
		"on a node without any":        {claims{ones(9)}, pool("n"), true},
		"of several claims":            {claims{ones(5), asking(), ones(4)}, eight(), false},
		"of a count that comes last":   {claims{ones(7), asking(2)}, eight(), false},
		"of a class that is not there": {claims{classless}, eight(), true},
		"before all others":            {claims{all}, eight(), false},
		"another driver's first":       {claims{beside(ones(9), 0)}, eight(), false},
		"another driver's last":        {claims{beside(ones(8), 8)}, eight(), false},
		"another driver's in a claim":  {claims{beside(asking(), 0), ones(9)}, eight(), false},
		"another driver's and one":     {claims{beside(ones(1), 0)}, eight(), true},
		"another driver's alone":       {claims{beside(asking(), 0)}, eight(), true},
		"alternatives of two":          {claims{alternatives}, eight(), false},
		"a selector that takes long":   {claims{selecting}, eight(), false},
	} {
		t.Run(name, func(t *testing.T) {
			before := make(claims, len(test.claims))
			for i, claim := range test.claims {
				before[i] = claim.DeepCopy()
			}
			got, err := scheduling.NewEngine(10).EndsInTime(t.Context(),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, []*resourceapi.ResourceSlice{test.on},
				[]*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: anyGPU}},
					{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}, Spec: resourceapi.DeviceClassSpec{
						Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
							Expression: "device.driver == 'nic.example.com'"}}}}}}, test.claims)
			if err != nil || got != test.want {
				t.Errorf("it ends in time: %t, %v, want %t", got, err, test.want)
			}
			for i := range before {
				expect.Equal(t, test.claims[i].String(), before[i].String(), "claim %s after it is looked at", before[i].Name)
			}
		})
	}
}
