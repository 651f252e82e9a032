// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
)

func TestCheckGates(t *testing.T) {
	for name, test := range map[string]struct {
		gates      []string
		kubernetes string
		want       string // part of the error; empty where there is none
	}{
		"none":                   {nil, "1.36", ""},
		"of the newest":          {[]string{"gang"}, "", ""},
		"of one that serves it":  {[]string{"gang"}, "1.37", ""},
		"of one that lacks it":   {[]string{"gang"}, "1.36", "does not serve scheduling.k8s.io/v1beta1"},
		"that nobody ever heard": {[]string{"gnag"}, "", `known are ["gang"]`},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkGates(test.gates, test.kubernetes)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
