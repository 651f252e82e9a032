// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// ClaimPeak is the most memory that the processes of one container used of one GPU at once.
type ClaimPeak struct {
	Namespace, Pod, Container, Claim string
	Index                            int
	UUID                             string
	MiB                              int64
}

// Peaks keeps the most that containers used: a scrape now and then misses what lasts for seconds. It is not safe for
// concurrent use.
type Peaks struct{ most map[ClaimPeak]int64 }

// Observe takes in what containers use, and forgets what was used by claims that are none of these; nil claims are
// not known.
func (p *Peaks) Observe(uses []ClaimUse, claims []Claim) {
	for _, u := range uses {
		if p.most == nil {
			p.most = map[ClaimPeak]int64{}
		}
		of := ClaimPeak{Namespace: u.Namespace, Pod: u.Pod, Container: u.Container, Claim: u.Claim, Index: u.Index,
			UUID: u.UUID}
		p.most[of] = max(p.most[of], u.UsedMiB)
	}
	if claims == nil || len(p.most) == 0 {
		return
	}
	known := make(map[claimName]bool, len(claims))
	for _, c := range claims {
		known[claimName{c.Namespace, c.Name}] = true
	}
	maps.DeleteFunc(p.most, func(of ClaimPeak, _ int64) bool {
		return !of.By(func(namespace, name string) bool { return known[claimName{namespace, name}] })
	})
}

// By reports whether the container has the GPU by a claim that is one of some, alone or beside others.
func (p ClaimPeak) By(is func(namespace, name string) bool) bool {
	for claim := range strings.SplitSeq(p.Claim, ",") {
		if is(p.Namespace, claim) {
			return true
		}
	}
	return false
}

// List is all that is kept, in the order of a Snapshot's claims.
func (p *Peaks) List() []ClaimPeak {
	var out []ClaimPeak
	for of, most := range p.most {
		of.MiB = most
		out = append(out, of)
	}
	slices.SortFunc(out, func(a, b ClaimPeak) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Container, b.Container), cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}
