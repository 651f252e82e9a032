package admission

import (
	"context"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

// createClaim is what is said of a new claim.
func (s *server) createClaim(spec resourceapi.ResourceClaimSpec) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "c"}, Spec: spec}
	attributes := admission.NewAttributesRecord(claim, nil, resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"), claim.Namespace, claim.Name,
		resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "", admission.Create, nil, false, &user.DefaultInfo{Name: "somebody"})
	return s.validating.Validate(context.Background(), attributes, admission.NewObjectInterfacesFromScheme(scheme.Scheme))
}

func exactly(name, class string) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class + ".gpu.aliyun.com"}}
}

func firstOf(name string, classes ...string) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: name}
	for _, class := range classes {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: class, DeviceClassName: class + ".gpu.aliyun.com"})
	}
	return r
}

func admin(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r.Exactly.AdminAccess = ptr.To(true)
	return r
}

// With MPS a container has one card. Which requests are for which container is not known
// when a claim is made; what one request is for is.
func TestRequestsWithMPSAreForOneCard(t *testing.T) {
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
		"one":                         {requests{exactly("a", "mps")}, false},
		"two":                         {requests{exactly("a", "mps"), exactly("b", "mps")}, false},
		"two of a card model":         {requests{exactly("a", "mps"), exactly("b", "mps.nvidia-a10")}, false},
		"two with alternatives":       {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, false},
		"two cards":                   {requests{two(exactly("a", "mps"))}, true},
		"two cards of a model":        {requests{two(exactly("a", "mps.nvidia-a10"))}, true},
		"two cards beside another":    {requests{exactly("a", "mps"), two(exactly("b", "mps"))}, true},
		"two cards as an alternative": {requests{either}, true},
		"all cards":                   {requests{all}, true},
		"two cards of another mode":   {requests{two(exactly("a", "cgpu"))}, false},
		"two cards, an administrator": {requests{two(admin(exactly("a", "mps")))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.createClaim(resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: tc.requests}})
			switch {
			case !tc.refused && err != nil:
				t.Errorf("refused: %v", err)
			case tc.refused && (err == nil || !strings.Contains(err.Error(), "with MPS a request is for one card: ask for one device")):
				t.Errorf("%v, want it refused", err)
			}
		})
	}
}
