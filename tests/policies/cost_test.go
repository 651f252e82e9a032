// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// allBut are the names of all policies and bindings but those.
func allBut(t testing.TB, these ...string) []string {
	t.Helper()
	var names []string
	for _, object := range policies(t) {
		accessor, err := meta.Accessor(object)
		expect.NoError(t, err)
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
		p := podFor("")
		b.ReportAllocs()
		for b.Loop() {
			request := attributesOf(somebody, p, nil, "")
			expect.NoError(b, s.Admit(context.Background(), request))
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
