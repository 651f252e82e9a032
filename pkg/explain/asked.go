// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Asked says in words what claims ask for, a line for each request.
func Asked(claims []*resourceapi.ResourceClaim) []string {
	var out []string
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			var alternatives []string
			for _, r := range scheduling.Served(&claim.Spec.Devices.Requests[i]) {
				alternatives = append(alternatives, asked(r))
			}
			out = append(out, fmt.Sprintf("claim %s, request %s: %s", claim.Name, claim.Spec.Devices.Requests[i].Name,
				strings.Join(alternatives, ", or ")))
		}
	}
	return out
}

// asked says what a request asks for.
func asked(r scheduling.Request) string {
	text := fmt.Sprintf("%d of class %s", r.Count, r.Class)
	if r.All {
		text = "all of class " + r.Class
	}
	for _, name := range slices.Sorted(maps.Keys(r.Capacity)) {
		text += fmt.Sprintf(", %s %s", name, Written(name, r.Capacity[name]))
	}
	for _, selector := range r.Selectors {
		text += ", " + shown(selector)
	}
	if r.Admin {
		text += ", as an administrator"
	}
	return text
}
