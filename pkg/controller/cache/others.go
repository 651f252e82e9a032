// SPDX-License-Identifier: Apache-2.0

package cache

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	"k8s.io/client-go/metadata/metadatainformer"
)

// Budgets asks for the PodDisruptionBudgets.
func (r *Reader) Budgets() *Objects[*policyv1.PodDisruptionBudget] {
	return ask[*policyv1.PodDisruptionBudget](r, "PodDisruptionBudgets", policyinformers.NewPodDisruptionBudgetInformer(
		r.cache.Client, metav1.NamespaceAll, r.cache.Resync, nil), withoutManagedFields)
}

// Namespaces asks for the labels of namespaces.
func (r *Reader) Namespaces() *Objects[*metav1.PartialObjectMetadata] {
	return ask[*metav1.PartialObjectMetadata](r, "the labels of namespaces", metadatainformer.NewFilteredMetadataInformer(
		r.cache.Metadata, corev1.SchemeGroupVersion.WithResource("namespaces"), metav1.NamespaceAll, r.cache.Resync, nil,
		nil).Informer(), withoutNotes)
}

// AdmissionPolicy asks for the ValidatingAdmissionPolicy of a name.
func (r *Reader) AdmissionPolicy(name string) *Objects[*admissionv1.ValidatingAdmissionPolicy] {
	return ask[*admissionv1.ValidatingAdmissionPolicy](r, "ValidatingAdmissionPolicy "+name,
		admissioninformers.NewFilteredValidatingAdmissionPolicyInformer(r.cache.Client, r.cache.Resync, nil,
			named(name)), nil)
}

// AdmissionBinding asks for the ValidatingAdmissionPolicyBinding of a name.
func (r *Reader) AdmissionBinding(name string) *Objects[*admissionv1.ValidatingAdmissionPolicyBinding] {
	return ask[*admissionv1.ValidatingAdmissionPolicyBinding](r, "ValidatingAdmissionPolicyBinding "+name,
		admissioninformers.NewFilteredValidatingAdmissionPolicyBindingInformer(r.cache.Client, r.cache.Resync, nil,
			named(name)), nil)
}

func named(name string) func(*metav1.ListOptions) {
	return withFields(fields.OneTermEqualSelector(metav1.ObjectNameField, name).String())
}
