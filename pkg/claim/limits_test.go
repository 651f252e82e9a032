// SPDX-License-Identifier: Apache-2.0

package claim

import "testing"

func TestParseLifters(t *testing.T) {
	for value, want := range map[string]Lifters{"": LiftersClaims, "claims": LiftersClaims, "classes": LiftersClasses,
		"nodes": LiftersNodes} {
		if got, err := ParseLifters(value); err != nil || got != want {
			t.Errorf("%q: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"class", "Nodes", "nobody"} {
		if got, err := ParseLifters(value); err == nil {
			t.Errorf("%q is taken for %q", value, got)
		}
	}
}
