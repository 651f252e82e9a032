// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// Part is what a container gets by one of its claims that has limits of its own, or none.
type Part struct {
	claim   string
	grants  []claim.Grant
	backend Backend
}

// Parts are what a container gets by the claim of that name. What an administrator sees
// beside is none.
func Parts(b Backends, claimName string, grants []claim.Grant) ([]Part, error) {
	var out []Part
	for _, own := range claim.ContainerGroups(grants) {
		if own[0].Admin {
			continue
		}
		backend, err := Find(b, own[0].Isolation, own[0].Mode)
		if err != nil {
			return nil, err
		}
		out = append(out, Part{claimName, own, backend})
	}
	return out, nil
}

// CheckContainer reports why one container could not be held to all of its parts.
func CheckContainer(parts []Part) error {
	var limited []Part
	for i, p := range parts {
		if p.limited() {
			limited = append(limited, p)
		}
		reason := p.backend.Alone(p.grants[0])
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

// lacks is a GPU of the other part that this one does not have.
func (p Part) lacks(other Part) (claim.GPU, bool) {
	for _, g := range other.grants {
		if !slices.ContainsFunc(p.grants, func(own claim.Grant) bool { return own.GPU.UUID == g.GPU.UUID }) {
			return g.GPU, true
		}
	}
	return claim.GPU{}, false
}
