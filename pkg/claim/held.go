package claim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

// heldError says that others hold what a claim was allocated. Its text is for whoever
// uses the claim: of what is in other namespaces it gives no names.
type heldError struct {
	text string
	// by are the claims and pods that hold it, with their namespaces.
	by []string
}

func (e *heldError) Error() string { return e.text }

// HeldBy returns the claims and pods because of which CheckFits refused a claim, as far
// as they are known, with their namespaces: for administrators, in logs. It is empty
// for other errors.
func HeldBy(err error) []string {
	var held *heldError
	if !errors.As(err, &held) {
		return nil
	}
	return held.by
}

func (h *Holder) fullName() string { return "claim " + h.Namespace + "/" + h.Name }

// nameFor is what users of a namespace are told of the holder.
func (h *Holder) nameFor(namespace string) string {
	if h.Namespace == namespace {
		return h.fullName()
	}
	return "another namespace's claim"
}

// mostNamed is how many pods a text names.
const mostNamed = 5

// podsFor is what users of a namespace are told of the pods that hold a card without a
// claim, which there are some of.
func podsFor(namespace string, card deviceplugin.Card) string {
	var own []string
	for _, pod := range card.Pods {
		if strings.HasPrefix(pod, namespace+"/") {
			own = append(own, pod)
		}
	}
	named := slices.Clone(own[:min(len(own), mostNamed)])
	if more := len(own) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more of the namespace", more))
	}
	if others := len(card.Pods) - len(own); others > 0 {
		named = append(named, fmt.Sprintf("%d of other namespaces", others))
	}
	return strings.Join(named, ", ")
}
