// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

// inUseError says that others use what a claim was allocated. Its text is for whoever
// uses the claim: of what is in other namespaces it gives no names.
type inUseError struct {
	text string
	// by are the claims and pods that use it, with their namespaces.
	by []string
}

func (e *inUseError) Error() string { return e.text }

// IsInUse reports whether CheckOvercommit, or CheckMade, refused a claim.
func IsInUse(err error) bool {
	var inUse *inUseError
	return errors.As(err, &inUse)
}

// InUseBy returns the claims and pods because of which a claim was refused, see IsInUse, as
// far as they are known, with their namespaces: for administrators, in logs. It is empty
// for other errors.
func InUseBy(err error) []string {
	var inUse *inUseError
	if !errors.As(err, &inUse) {
		return nil
	}
	return inUse.by
}

func (c *Claim) fullName() string { return "claim " + c.Namespace + "/" + c.Name }

// nameFor is what users of a namespace are told of the claim.
func (c *Claim) nameFor(namespace string) string {
	if c.Namespace == namespace {
		return c.fullName()
	}
	return "another namespace's claim"
}

// mostNamed is how many pods a text names.
const mostNamed = 5

// podsFor is what users of a namespace are told of the pods that have some of a GPU
// without a claim.
func podsFor(namespace string, reserved held.GPU) string {
	var own []string
	for _, pod := range reserved.Pods {
		if strings.HasPrefix(pod, namespace+"/") {
			own = append(own, pod)
		}
	}
	named := slices.Clone(own[:min(len(own), mostNamed)])
	if more := len(own) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more of the namespace", more))
	}
	if others := len(reserved.Pods) - len(own); others > 0 {
		named = append(named, fmt.Sprintf("%d of other namespaces", others))
	}
	return strings.Join(named, ", ")
}
