// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
)

// allBut are the names of all policies and bindings but those.
func allBut(t testing.TB, these ...string) []string {
	t.Helper()
	var names []string
	for _, object := range policies(t) {
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(these, accessor.GetName()) {
			names = append(names, accessor.GetName())
		}
	}
	return names
}

// BenchmarkPodWithoutGPUs is what policies cost the creation of a pod that has nothing to do
// with them: none of them, all, and each alone. Allocations are the same on each machine.
func BenchmarkPodWithoutGPUs(b *testing.B) {
	names := allBut(b)
	create := func(b *testing.B, without ...string) {
		s := newServer(b, without...)
		p := pod("p", nil, limited("c", ""))
		objects := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
		b.ReportAllocs()
		for b.Loop() {
			attributes := admission.NewAttributesRecord(p, nil, corev1.SchemeGroupVersion.WithKind("Pod"), p.Namespace, p.Name,
				corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, nil, false,
				&user.DefaultInfo{Name: "somebody"})
			if err := s.mutating.Admit(context.Background(), attributes, objects); err != nil {
				b.Fatal(err)
			}
			if err := s.validating.Validate(context.Background(), attributes, objects); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("none", func(b *testing.B) { create(b, names...) })
	b.Run("all", func(b *testing.B) { create(b) })
	alone := map[string]bool{}
	for _, name := range names {
		if alone[name] {
			continue // a policy's binding has its name
		}
		alone[name] = true
		others := make([]string, 0, len(names))
		for _, other := range names {
			if other != name {
				others = append(others, other)
			}
		}
		b.Run(name, func(b *testing.B) { create(b, others...) })
	}
}
