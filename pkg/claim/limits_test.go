// SPDX-License-Identifier: Apache-2.0

package claim

import "testing"

func TestParseLimitsOffBy(t *testing.T) {
	for value, want := range map[string]LimitsOffBy{"": LimitsOffByClaims, "claims": LimitsOffByClaims,
		"classes": LimitsOffByClasses, "nodes": LimitsOffByNodes} {
		if got, err := ParseLimitsOffBy(value); err != nil || got != want {
			t.Errorf("%q: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"class", "Nodes", "nobody"} {
		if got, err := ParseLimitsOffBy(value); err == nil {
			t.Errorf("%q is taken for %q", value, got)
		}
	}
}
