// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"
)

// createClaim is what is said of a new claim.
func (s *server) createClaim(spec resourceapi.ResourceClaimSpec) error {
	return s.createClaimIn(team, spec)
}

func (s *server) createClaimIn(namespace string, spec resourceapi.ResourceClaimSpec) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"}, Spec: spec}
	return s.validate(somebody, claim, nil, "ResourceClaim", claimsResource, admission.Create)
}

func exactly(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name,
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class + ".gpu.aliyun.com"}}
}

func firstOf(name string, classes ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name}
	for _, class := range classes {
		r.FirstAvailable = append(r.FirstAvailable,
			resourceapi.DeviceSubRequest{Name: class, DeviceClassName: class + ".gpu.aliyun.com"})
	}
	return r
}

func admin(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r.Exactly.AdminAccess = ptr.To(true)
	return r
}

// With MPS a container has one GPU. Which requests are for which container is not known
// when a claim is made; what one request is for is.
func TestRequestsWithMPSAreForOneGPU(t *testing.T) {
	s := newServer(t)
	type requests = []resourceapi.DeviceRequest
	two := func(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
		r.Exactly.Count = 2
		return r
	}
	all := exactly("a", "mps")
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	either := firstOf("a", "share", "mps")
	either.FirstAvailable[1].Count = 2
	for name, tc := range map[string]struct {
		requests requests
		refused  bool
	}{
		"one":                        {requests{exactly("a", "mps")}, false},
		"two":                        {requests{exactly("a", "mps"), exactly("b", "mps")}, false},
		"two of a GPU model":         {requests{exactly("a", "mps"), exactly("b", "mps.nvidia-a10")}, false},
		"two with alternatives":      {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, false},
		"two GPUs":                   {requests{two(exactly("a", "mps"))}, true},
		"two GPUs of a model":        {requests{two(exactly("a", "mps.nvidia-a10"))}, true},
		"two GPUs beside another":    {requests{exactly("a", "mps"), two(exactly("b", "mps"))}, true},
		"two GPUs as an alternative": {requests{either}, true},
		"all GPUs":                   {requests{all}, true},
		"two GPUs of another mode":   {requests{two(exactly("a", "cgpu"))}, false},
		"two GPUs, an administrator": {requests{two(admin(exactly("a", "mps")))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.createClaim(resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: tc.requests}})
			switch {
			case !tc.refused && err != nil:
				t.Errorf("refused: %v", err)
			case tc.refused && (err == nil || !strings.Contains(err.Error(), "with MPS a request is for one GPU: ask for one "+
				"device")):
				t.Errorf("%v, want it refused", err)
			}
		})
	}
}

// With more slots than its own, a share would close its GPU to others.
func TestAShareTakesOneSlot(t *testing.T) {
	s := newServer(t)
	asking := func(r resourceapi.DeviceRequest, slots string) resourceapi.DeviceRequest {
		r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse("1Gi"), "slots": resource.MustParse(slots),
		}}
		return r
	}
	alternative := firstOf("a", "share", "cgpu")
	alternative.FirstAvailable[1].Capacity = asking(exactly("a", "cgpu"), "2").Exactly.Capacity
	for name, tc := range map[string]struct {
		request resourceapi.DeviceRequest
		refused bool
	}{
		"one":                  {asking(exactly("a", "share"), "1"), false},
		"all of a GPU's":       {asking(exactly("a", "share"), "20"), true},
		"of any share":         {asking(exactly("a", "memory"), "2"), true},
		"of a model":           {asking(exactly("a", "mps.nvidia-a10"), "2"), true},
		"of an alternative":    {alternative, true},
		"none":                 {asking(exactly("a", "share"), "0"), true},
		"an administrator's":   {asking(admin(exactly("a", "share")), "0"), false},
		"administrators' many": {asking(admin(exactly("a", "share")), "20"), true},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.createClaim(
				resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{tc.request}}})
			if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "a share takes one slot of its GPU") {
				t.Errorf("%v, refused should be %v", err, tc.refused)
			}
		})
	}
}

// What `helm test` asks for by the chart's value test.deviceClass is not refused.
func TestClaimsOfHelmTest(t *testing.T) {
	s := newServer(t)
	for _, object := range decoded(t, "testdata/helm-test.yaml") {
		template, is := object.(*resourceapi.ResourceClaimTemplate)
		if !is {
			t.Fatalf("there is a %T", object)
		}
		template.Namespace = team
		class := template.Spec.Spec.Devices.Requests[0].Exactly.DeviceClassName
		if err := s.validate(somebody, template, nil, "ResourceClaimTemplate", templatesResource,
			admission.Create); err != nil {
			t.Errorf("template of %s: %v", class, err)
		}
		if err := s.createClaim(template.Spec.Spec); err != nil {
			t.Errorf("claim of %s: %v", class, err)
		}
	}
}
