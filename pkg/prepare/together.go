package prepare

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
)

// checkTogether reports which container could not be held to all that it gets by the
// claim and by its other claims. Those are read from the API server; there are mostly
// none.
func (p *Preparer) checkTogether(ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim, grants []claim.Grant, pods []*corev1.Pod) error {
	var beside []string
	for _, pod := range pods {
		for _, container := range claim.Containers(pod) {
			if len(partsOf(c.Name, container.Used(c.Name, grants))) > 0 {
				beside = append(beside, container.OtherClaims(c.Name)...)
			}
		}
	}
	read := p.readClaims(ctx, c.Namespace, beside)
	for _, pod := range pods {
		for _, container := range claim.Containers(pod) {
			parts := partsOf(c.Name, container.Used(c.Name, grants))
			if len(parts) == 0 {
				continue
			}
			for _, name := range container.OtherClaims(c.Name) {
				others, err := p.grantsBeside(ctx, inv, read[name], pod)
				if err != nil {
					return fmt.Errorf("claim %s, which container %q of pod %s uses beside this one: %w", name, container.Name, pod.Name, err)
				}
				parts = append(parts, partsOf(name, container.Used(name, others))...)
			}
			if err := together(parts); err != nil {
				return fmt.Errorf("container %q of pod %s: %w", container.Name, pod.Name, err)
			}
		}
	}
	return nil
}

// grantsBeside are the grants of another claim of the pod, none if it brings no cards.
func (p *Preparer) grantsBeside(ctx context.Context, inv *Inventory, read readClaim, pod *corev1.Pod) ([]claim.Grant, error) {
	if read.err != nil || !claim.BringsCards(read.claim) {
		return nil, read.err
	}
	grants, err := p.isolated(ctx, inv, read.claim)
	if err != nil {
		return nil, err
	}
	_, err = p.use(grants, read.claim, pod)
	return grants, err
}

// part is what a container gets that has limits of its own, or none.
type part struct {
	claim  string
	grants []claim.Grant
}

// partsOf are the parts of one claim. What an administrator sees beside is none.
func partsOf(claimName string, grants []claim.Grant) []part {
	var out []part
	for _, own := range byUser(grants) {
		if !own[0].Admin {
			out = append(out, part{claimName, own})
		}
	}
	return out
}

func (p part) String() string {
	return fmt.Sprintf("request %q of claim %s", p.grants[0].Request, p.claim)
}

func (p part) limited() bool {
	return isolation.Capped(p.grants[0].Mode) && !p.grants[0].Config.IsolationDisabled()
}

// exclude says why the part's isolation leaves a container no cards but its own;
// empty if it does not.
func (p part) exclude() string {
	switch {
	case p.grants[0].Isolation == isolation.NameMPS:
		return "with MPS a process can use one card"
	case p.grants[0].Isolation == isolation.NameHAMi && p.limited():
		return "HAMi-core tells cards by their number in the container, and would take one for another"
	default:
		return ""
	}
}

// beyond is a card of the other part that this one does not have.
func (p part) beyond(other part) (claim.Card, bool) {
	for _, g := range other.grants {
		if !slices.ContainsFunc(p.grants, func(own claim.Grant) bool { return own.Card.UUID == g.Card.UUID }) {
			return g.Card, true
		}
	}
	return claim.Card{}, false
}

// together reports why one container cannot have all of the parts.
func together(parts []part) error {
	var limited []part
	for i, p := range parts {
		if p.limited() {
			limited = append(limited, p)
		}
		reason := p.exclude()
		if reason == "" {
			continue
		}
		for _, other := range slices.Concat(parts[:i], parts[i+1:]) {
			if card, ok := p.beyond(other); ok {
				return fmt.Errorf("it would have card %d by %s beside card %d by %s, but %s: give it the cards of one of them, or ask for whole cards",
					card.Index, other, p.grants[0].Card.Index, p, reason)
			}
		}
	}
	if len(limited) > 1 {
		return fmt.Errorf("%s and %s each have limits of their own, of which only one would hold: ask for all that the container needs in one claim, whose GpuConfig names no other container for it",
			limited[0], limited[1])
	}
	return nil
}
