// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// BindingConvert is the MutatingAdmissionPolicyBinding that says whose pods are converted.
const BindingConvert = "gpushare-legacy-convert"

// Policies are the driver's admission policies for pods that Ask, for those who have no API server that has them. They
// are the selector of namespaces in BindingConvert.
type Policies struct{ Converts labels.Selector }

// NewPolicies returns the policies as bound for the namespaces that the selector selects; nil selects all.
func NewPolicies(selector *metav1.LabelSelector) (Policies, error) {
	if selector == nil {
		return Policies{labels.Everything()}, nil
	}
	converts, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		err = fmt.Errorf("read the namespaceSelector of the MutatingAdmissionPolicyBinding %s: %w", BindingConvert, err)
	}
	return Policies{converts}, err
}

// LeftAlone is why a pod is not converted, empty if it is, and whether it is refused for that. Its namespace has these
// labels; nil where that is not known. Where pods of a namespace that says nothing are not converted, as during a
// migration (deployments/options/migration), none is refused.
func (p Policies) LeftAlone(pod *corev1.Pod, namespace labels.Set) (why string, refused bool) {
	named := labels.Set{corev1.LabelMetadataName: pod.Namespace}
	switch always := p.Converts.Matches(labels.Set{corev1.LabelMetadataName: "any"}); {
	case pod.Labels[v1alpha1.LabelLegacy] == "false":
		return "it opted out by its label " + v1alpha1.LabelLegacy + "=false", always
	case namespace[v1alpha1.LabelLegacy] == "false":
		return "its namespace opted out by the label " + v1alpha1.LabelLegacy + "=false", always
	case OfSystem(pod.Namespace):
		return "pods of this namespace are left alone", always
	case namespace != nil && !p.Converts.Matches(labels.Merge(namespace, named)):
		return "the MutatingAdmissionPolicyBinding " + BindingConvert + " does not select its namespace: label it " +
			v1alpha1.LabelLegacy + "=true", false
	}
	return "", false
}

// Admit is what becomes of a pod: it is converted, or left as it is for a reason, or refused for one.
func (p Policies) Admit(pod *corev1.Pod, namespace labels.Set) (made *corev1.Pod, left, refused string) {
	why, refuses := p.LeftAlone(pod, namespace)
	request, err := OfPod(pod)
	if err == nil && namespace[v1alpha1.LabelCostlyClaims] != v1alpha1.CostlyClaimsAllowed {
		err = request.Searchable()
	}
	switch {
	case why != "" && !refuses:
		return pod, why, ""
	case err != nil:
		return pod, "", err.Error()
	case why != "":
		return pod, "", why + ". It would run without a GPU; remove the limit and refer to a ResourceClaim or " +
			"ResourceClaimTemplate"
	default:
		return Convert(pod, request), "", ""
	}
}
