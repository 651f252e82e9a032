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
	toolscache "k8s.io/client-go/tools/cache"
)

// Budgets asks for the PodDisruptionBudgets.
func (r *Reader) Budgets() *Objects[*policyv1.PodDisruptionBudget] {
	c := r.cache
	p := c.part("PodDisruptionBudgets", func() toolscache.SharedIndexInformer {
		return policyinformers.NewPodDisruptionBudgetInformer(c.Client, metav1.NamespaceAll, c.Resync, toolscache.Indexers{})
	}, withoutManagedFields, nil)
	return objects[*policyv1.PodDisruptionBudget](r, r.need(p), nil)
}

// Namespaces asks for the labels of namespaces.
func (r *Reader) Namespaces() *Objects[*metav1.PartialObjectMetadata] {
	c := r.cache
	p := c.part("the labels of namespaces", func() toolscache.SharedIndexInformer {
		return metadatainformer.NewFilteredMetadataInformer(c.Metadata, corev1.SchemeGroupVersion.WithResource("namespaces"),
			metav1.NamespaceAll, c.Resync, toolscache.Indexers{}, nil).Informer()
	}, withoutNotes, nil)
	return objects[*metav1.PartialObjectMetadata](r, r.need(p), nil)
}

// AdmissionPolicy asks for the ValidatingAdmissionPolicy of a name.
func (r *Reader) AdmissionPolicy(name string) *Objects[*admissionv1.ValidatingAdmissionPolicy] {
	c := r.cache
	p := c.part("ValidatingAdmissionPolicy "+name, func() toolscache.SharedIndexInformer {
		return admissioninformers.NewFilteredValidatingAdmissionPolicyInformer(c.Client, c.Resync, toolscache.Indexers{},
			named(name))
	}, nil, nil)
	return objects[*admissionv1.ValidatingAdmissionPolicy](r, r.need(p), nil)
}

// AdmissionBinding asks for the ValidatingAdmissionPolicyBinding of a name.
func (r *Reader) AdmissionBinding(name string) *Objects[*admissionv1.ValidatingAdmissionPolicyBinding] {
	c := r.cache
	p := c.part("ValidatingAdmissionPolicyBinding "+name, func() toolscache.SharedIndexInformer {
		return admissioninformers.NewFilteredValidatingAdmissionPolicyBindingInformer(c.Client, c.Resync,
			toolscache.Indexers{}, named(name))
	}, nil, nil)
	return objects[*admissionv1.ValidatingAdmissionPolicyBinding](r, r.need(p), nil)
}

func named(name string) func(*metav1.ListOptions) {
	return withFields(fields.OneTermEqualSelector(metav1.ObjectNameField, name).String())
}
