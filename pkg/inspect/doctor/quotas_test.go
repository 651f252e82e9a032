// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// limited gives namespace a a quota with these lines.
func limited(lines ...corev1.ResourceName) func(s *doctor.Snapshot) {
	return func(s *doctor.Snapshot) {
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "gpu"}}
		q.Spec.Hard = corev1.ResourceList{}
		for _, line := range lines {
			q.Spec.Hard[line] = resource.MustParse("6")
		}
		s.Quotas = append(s.Quotas, q)
	}
}

// counts installs the option quota, converts other-manifests.
func counts(s *doctor.Snapshot)   { binding(s, "gpushare-quota") }
func converts(s *doctor.Snapshot) { binding(s, "gpushare-other-manifests") }

// shares has pod p of namespace a have a share that it asked for as with HAMi.
func shares(s *doctor.Snapshot) {
	s.Pods[3].Annotations = map[string]string{v1alpha1.AnnotationOtherRequest: `{"main":{"nvidia.com/gpu":"1"}}`,
		v1alpha1.AnnotationLegacyRequest: `{"main":{"aliyun.com/gpu-mem":"3"}}`}
}

func binding(s *doctor.Snapshot, policy string) {
	s.MutatingBindings = append(s.MutatingBindings, &admissionv1.MutatingAdmissionPolicyBinding{
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy}})
}

// A quota whose lines count nothing is found, by whomever it was brought.
func TestQuotasThatDoNotCount(t *testing.T) {
	const memory, cores = "requests.aliyun.com/gpu-mem", "requests.aliyun.com/gpu-core.percentage"
	const hami = "limits.nvidia.com/gpumem"
	const finding = "warning quotas resourcequota/gpu -n a: its line "
	for name, test := range map[string]struct {
		changes []func(s *doctor.Snapshot)
		want    string
	}{
		"memory": {[]func(*doctor.Snapshot){limited(memory)}, finding + memory +
			" does not count the driver's GPUs: that takes the option quota"},
		"compute": {[]func(*doctor.Snapshot){limited(cores)}, finding + cores +
			" does not count the driver's GPUs: that takes the option quota"},
		"with the option": {[]func(*doctor.Snapshot){limited(memory, cores), counts}, ""},
		"with a scope": {[]func(*doctor.Snapshot){limited(memory), counts, func(s *doctor.Snapshot) {
			s.Quotas[0].Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		}}, finding + memory + " does not count the driver's GPUs, for it has scopes"},
		"with a class of before": {[]func(*doctor.Snapshot){limited(memory), counts, func(s *doctor.Snapshot) {
			for i := range s.Classes {
				s.Classes[i] = s.Classes[i].DeepCopy()
				s.Classes[i].Spec.ExtendedResourceName = nil
			}
		}}, "for the DeviceClass gib.quota.gpu.aliyun.com has lost spec.extendedResourceName"},
		"whole GPUs": {[]func(*doctor.Snapshot){limited("requests.aliyun.com/gpu"), counts}, finding +
			"requests.aliyun.com/gpu does not count"},
		"of Kubernetes' and the driver's": {[]func(*doctor.Snapshot){limited("requests.nvidia.com/gpu", "pods",
			"gib.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices")}, ""},
		"for HAMi": {[]func(*doctor.Snapshot){limited(hami), converts}, finding + hami +
			" does not count the driver's GPUs"},
		"for HAMi, by another name": {[]func(*doctor.Snapshot){limited("requests.nvidia.com/gpu-memory"), converts}, finding +
			"requests.nvidia.com/gpu-memory does not count the driver's GPUs"},
		"for replicas": {[]func(*doctor.Snapshot){limited("requests.nvidia.com/gpu.shared"), converts}, finding +
			"requests.nvidia.com/gpu.shared does not count the driver's GPUs"},
		"for HAMi, whose pods are not converted": {[]func(*doctor.Snapshot){limited(hami)}, ""},
		"for HAMi, in its namespaces": {[]func(*doctor.Snapshot){limited(hami), converts, func(s *doctor.Snapshot) {
			s.Namespaces[0].Labels = map[string]string{v1alpha1.LabelLegacy: "false"}
		}}, ""},
		"of whole GPUs, beside shares for HAMi": {[]func(*doctor.Snapshot){limited("requests.nvidia.com/gpu"), shares},
			finding + "requests.nvidia.com/gpu does not count the driver's GPUs, but for whole ones: pod p, written for " +
				"another project, has a share"},
		"of whole GPUs, and of shares for HAMi": {[]func(*doctor.Snapshot){limited("requests.nvidia.com/gpu", memory),
			counts, shares}, ""},
		"of whole GPUs, for shares in another namespace": {[]func(*doctor.Snapshot){
			limited("requests.nvidia.com/gpu"), shares, func(s *doctor.Snapshot) { s.Quotas[0].Namespace = "b" }}, ""},
		"of which the classes cannot be read": {[]func(*doctor.Snapshot){limited(memory), counts, func(s *doctor.Snapshot) {
			s.Unread, s.Classes = []string{"deviceclasses.resource.k8s.io"}, nil
		}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			for _, change := range test.changes {
				change(s)
			}
			var found []string
			for _, line := range strings.Split(told(doctor.Examine(s)), "\n") {
				if strings.Contains(line, " quotas ") {
					found = append(found, line)
				}
			}
			expect.Says(t, strings.Join(found, "\n"), test.want)
		})
	}
}
