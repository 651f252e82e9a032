// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// ownedBy is a claim whose author says that it is a pod's, as one that Kubernetes makes of the pod's template.
func ownedBy(p *corev1.Pod, entry string, of resourceapi.DeviceClaim) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "c",
			Finalizers:  []string{resourceapi.Finalizer},
			Annotations: map[string]string{resourceapi.PodResourceClaimAnnotation: entry},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID,
				Controller: ptr.To(true)}}},
		Spec: resourceapi.ResourceClaimSpec{Devices: of},
	}
}

// judgedAsAPods checks that a claim is refused, or is not if that is empty, when it is created as a pod's, and when one
// that was created alone becomes the pod's. It returns that one.
func (s *server) judgedAsAPods(t *testing.T, owned *resourceapi.ResourceClaim,
	makeAlone func(*resourceapi.ResourceClaim), refused string) (alone *resourceapi.ResourceClaim) {
	t.Helper()
	expect.Error(t, s.validate(somebody, owned, nil), refused)
	alone = owned.DeepCopy()
	makeAlone(alone)
	expect.NoError(t, s.validate(somebody, alone, nil))
	expect.Error(t, s.validate(somebody, owned, alone), refused)
	// One that is there from before the policy can be released.
	released := owned.DeepCopy()
	released.Finalizers = nil
	expect.NoError(t, s.validate(somebody, released, owned))
	return alone
}

// Kubernetes takes a claim for its pod's that says so. One that is created by itself and says so later is looked at
// then, and no other change of it is.
func TestClaimsThatBecomeAPods(t *testing.T) {
	waiting := claimsPod("waiting", "none-yet", "none-yet")
	waiting.UID, waiting.Labels = "uid", map[string]string{v1alpha1.LabelClaims: "2"}
	s := newServerWith(t, []runtime.Object{waiting})
	const refused = "Beside the others, this one requests too many GPUs"
	for name, test := range map[string]struct {
		of      resourceapi.DeviceClaim
		refused string
	}{
		"one share":   {claimFor(of(1, "share")), ""},
		"four shares": {claimFor(of(4, "share")), refused},
	} {
		t.Run(name, func(t *testing.T) {
			owned := ownedBy(waiting, "c0", test.of)
			alone := s.judgedAsAPods(t, owned, func(c *resourceapi.ResourceClaim) { c.OwnerReferences = nil }, test.refused)
			expect.NoError(t, s.validate(somebody, alone, owned))
		})
	}
}

// A kubelet writes mirrors of its static pods into any namespace, with any labels. None of them keeps the namespace
// from its claims.
func TestMarkedPodsWithoutClaims(t *testing.T) {
	mirror := pod("mirror-n1", map[string]string{v1alpha1.LabelClaims: "many"}, limited("c", ""))
	mirror.UID, mirror.Spec.NodeName = "uid", "n1"
	s := newServerWith(t, []runtime.Object{mirror})
	expect.NoError(t, s.createClaim(team, claimFor(of(4, "share"))))
}

// What is called as the claims for CPUs that the driver makes is not counted among a pod's claims, and so is for CPUs
// alone.
func TestClaimsThatAreCalledCPUs(t *testing.T) {
	const entry, template, refused = "gpushare-cpus-0", "gpushare.cpu.main.8", "for CPUs alone"
	s := newServerWith(t, []runtime.Object{claimTemplate("four", claimFor(of(4, "share")))})
	request, err := legacy.ParseName(template)
	expect.NoError(t, err)
	cpus, gpu := request.Template(team).Spec.Spec.Devices, claimFor(of(1, "share"))
	owner := claimsPod("p", template)
	owner.UID = "uid"
	for what, test := range map[string]struct {
		of      resourceapi.DeviceClaim
		refused string
	}{"CPUs": {cpus, ""}, "a GPU": {gpu, refused}} {
		t.Run(what, func(t *testing.T) {
			expect.Error(t, s.validate(somebody, claimTemplate(template, test.of), nil), test.refused)
			s.judgedAsAPods(t, ownedBy(owner, entry, test.of), func(c *resourceapi.ResourceClaim) { c.Annotations = nil },
				test.refused)
		})
	}
	for what, test := range map[string]struct {
		change  func(*corev1.PodResourceClaim)
		refused string
	}{
		"the driver's": {func(c *corev1.PodResourceClaim) { c.ResourceClaimTemplateName = ptr.To(template) }, ""},
		"a template of another name": {func(c *corev1.PodResourceClaim) { c.ResourceClaimTemplateName = ptr.To("four") },
			"requests too many GPUs"},
		"a claim": {func(c *corev1.PodResourceClaim) {
			c.ResourceClaimName, c.ResourceClaimTemplateName = ptr.To("named"), nil
		}, "requests too many GPUs"},
	} {
		t.Run(what, func(t *testing.T) {
			p := claimsPod("p", "four", template)
			p.Spec.ResourceClaims[1].Name = entry
			test.change(&p.Spec.ResourceClaims[1])
			_, err := s.create(p)
			expect.Error(t, err, test.refused)
		})
	}
}
