// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Part is what a container gets by one of its claims that has limits of its own, or none.
type Part struct {
	claim  string
	grants []claim.Grant
}

// Parts are what a container gets by the claim of that name. What an administrator sees
// beside is none.
func Parts(claimName string, grants []claim.Grant) []Part {
	var out []Part
	for _, own := range claim.ContainerGroups(grants) {
		if !own[0].Admin {
			out = append(out, Part{claimName, own})
		}
	}
	return out
}

// CheckContainer reports why one container could not be held to all of its parts.
func CheckContainer(parts []Part) error {
	var limited []Part
	for i, p := range parts {
		if p.limited() {
			limited = append(limited, p)
		}
		reason := p.excludes()
		if reason == "" {
			continue
		}
		for _, other := range slices.Concat(parts[:i], parts[i+1:]) {
			if g, ok := p.lacks(other); ok {
				return fmt.Errorf("it would have GPU %d by %s beside GPU %d by %s, but %s: give it the GPUs of one of them, or "+
					"ask for whole GPUs",
					g.Index, other, p.grants[0].GPU.Index, p, reason)
			}
		}
	}
	if len(limited) > 1 {
		return fmt.Errorf("%s and %s each have limits of their own, of which only one would hold: ask for all that the "+
			"container needs in one claim, whose GpuConfig names no other container for it",
			limited[0], limited[1])
	}
	return nil
}

// String names the part for users.
func (p Part) String() string {
	return fmt.Sprintf("request %q of claim %s", p.grants[0].Request, p.claim)
}

func (p Part) limited() bool { return Limited(p.grants[0]) }

// excludes says why the part's isolation leaves a container no GPUs but its own;
// empty if it does not.
func (p Part) excludes() string {
	switch {
	case p.grants[0].Isolation == mode.IsolationMPS:
		return "with MPS a process can use one GPU"
	case p.grants[0].Isolation == mode.IsolationHAMi && p.limited():
		return "HAMi-core tells GPUs by their number in the container, and would take one for another"
	default:
		return ""
	}
}

// lacks is a GPU of the other part that this one does not have.
func (p Part) lacks(other Part) (claim.GPU, bool) {
	for _, g := range other.grants {
		if !slices.ContainsFunc(p.grants, func(own claim.Grant) bool { return own.GPU.UUID == g.GPU.UUID }) {
			return g.GPU, true
		}
	}
	return claim.GPU{}, false
}
