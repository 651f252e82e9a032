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

func matching(attribute string, requests ...string) resourceapi.DeviceConstraint {
	return resourceapi.DeviceConstraint{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(attribute)), Requests: requests}
}

// With MPS all shares of a claim have to be bound to one card, by one constraint.
func TestClaimsWithMPSAreForOneCard(t *testing.T) {
	s := newServer(t)
	const uuid = "gpu.aliyun.com/uuid"
	type (
		requests    = []resourceapi.DeviceRequest
		constraints = []resourceapi.DeviceConstraint
	)
	for name, tc := range map[string]struct {
		requests    requests
		constraints constraints
		refused     bool
	}{
		"one":                                  {requests{exactly("a", "mps")}, nil, false},
		"two":                                  {requests{exactly("a", "mps"), exactly("b", "mps")}, nil, true},
		"two of a card model":                  {requests{exactly("a", "mps"), exactly("b", "mps.nvidia-a10")}, nil, true},
		"two of other modes":                   {requests{exactly("a", "cgpu"), exactly("b", "mps")}, nil, false},
		"one beside an administrator's":        {requests{exactly("a", "mps"), admin(exactly("b", "mps"))}, nil, false},
		"two, all bound":                       {requests{exactly("a", "mps"), exactly("b", "mps")}, constraints{matching(uuid)}, false},
		"two, bound by name":                   {requests{exactly("a", "mps"), exactly("b", "mps"), exactly("c", "share")}, constraints{matching(uuid, "a", "b")}, false},
		"two, bound by something else":         {requests{exactly("a", "mps"), exactly("b", "mps")}, constraints{matching("gpu.aliyun.com/model")}, true},
		"two, others bound":                    {requests{exactly("a", "mps"), exactly("b", "mps"), exactly("c", "cgpu"), exactly("d", "cgpu")}, constraints{matching(uuid, "c", "d")}, true},
		"three, two of them bound":             {requests{exactly("a", "mps"), exactly("b", "mps"), exactly("c", "mps")}, constraints{matching(uuid, "a", "b")}, true},
		"three, bound by two constraints":      {requests{exactly("a", "mps"), exactly("b", "mps"), exactly("c", "mps")}, constraints{matching(uuid, "a", "b"), matching(uuid, "b", "c")}, true},
		"alternatives of one":                  {requests{firstOf("a", "mps", "mps.nvidia-a10")}, nil, false},
		"two with alternatives":                {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, nil, true},
		"alternatives beside another":          {requests{exactly("a", "mps"), firstOf("b", "share", "mps")}, nil, true},
		"two with alternatives, bound":         {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, constraints{matching(uuid, "a", "b")}, false},
		"two, the alternatives bound":          {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, constraints{matching(uuid, "a/mps", "b/mps")}, false},
		"two, one of the alternatives unbound": {requests{firstOf("a", "mps", "share"), firstOf("b", "share", "mps")}, constraints{matching(uuid, "a/mps", "b/share")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.createClaim(resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: tc.requests, Constraints: tc.constraints}})
			switch {
			case !tc.refused && err != nil:
				t.Errorf("refused: %v", err)
			case tc.refused && (err == nil || !strings.Contains(err.Error(), "with MPS a claim is for one card: bind all its requests")):
				t.Errorf("%v, want it refused", err)
			}
		})
	}
}
