// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// createClaim is what is said of a new claim.
func (s *server) createClaim(namespace string, of resourceapi.DeviceClaim) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"}}
	claim.Spec.Devices = of
	return s.validate(somebody, claim, nil)
}

// ifRefused is the text of a refusal, as expect.Error takes it: empty where nothing is refused.
func ifRefused(refused bool, text string) string {
	if refused {
		return text
	}
	return ""
}

type requests = []resourceapi.DeviceRequest

// claimed is what a claim with these requests asks for.
func claimed(requests ...resourceapi.DeviceRequest) resourceapi.DeviceClaim {
	return resourceapi.DeviceClaim{Requests: requests}
}

// templateOf is a template of such claims, which has the claim's name.
func templateOf(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaimTemplate {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: claim.ObjectMeta}
	template.Spec.Spec = claim.Spec
	return template
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
	const refused = "with MPS a request is for one GPU: ask for one device"
	two := func(r resourceapi.DeviceRequest) resourceapi.DeviceRequest { return several(r, 2) }
	all := exactly("a", "mps")
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	either := firstOf("a", "share", "mps")
	either.FirstAvailable[1].Count = 2
	for name, tc := range map[string]struct {
		requests requests
		refused  string
	}{
		"one":                        {requests{exactly("a", "mps")}, ""},
		"two":                        {requests{exactly("a", "mps"), exactly("b", "mps")}, ""},
		"two of a GPU model":         {requests{exactly("a", "mps"), exactly("b", "mps.nvidia-a10")}, ""},
		"two with alternatives":      {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, ""},
		"two GPUs":                   {requests{two(exactly("a", "mps"))}, refused},
		"two GPUs of a model":        {requests{two(exactly("a", "mps.nvidia-a10"))}, refused},
		"two GPUs beside another":    {requests{exactly("a", "mps"), two(exactly("b", "mps"))}, refused},
		"two GPUs as an alternative": {requests{either}, refused},
		"all GPUs":                   {requests{all}, refused},
		"two GPUs of another mode":   {requests{two(exactly("a", "cgpu"))}, ""},
		"two GPUs, an administrator": {requests{two(admin(exactly("a", "mps")))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.createClaim(team, claimed(tc.requests...)), tc.refused)
		})
	}
}

// With more slots than its own, a share would close its GPU to others.
func TestAShareTakesOneSlot(t *testing.T) {
	s := newServer(t)
	const refused = "a share takes one slot of its GPU"
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
		refused string
	}{
		"one":                  {asking(exactly("a", "share"), "1"), ""},
		"all of a GPU's":       {asking(exactly("a", "share"), "20"), refused},
		"of any share":         {asking(exactly("a", "memory"), "2"), refused},
		"of a model":           {asking(exactly("a", "mps.nvidia-a10"), "2"), refused},
		"of an alternative":    {alternative, refused},
		"none":                 {asking(exactly("a", "share"), "0"), refused},
		"an administrator's":   {asking(admin(exactly("a", "share")), "0"), ""},
		"administrators' many": {asking(admin(exactly("a", "share")), "20"), refused},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.createClaim(team, claimed(tc.request)), tc.refused)
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
		if err := errors.Join(s.validate(somebody, template, nil), s.createClaim(team,
			template.Spec.Spec.Devices)); err != nil {
			t.Errorf("template and claim of %s: %v", class, err)
		}
	}
}
