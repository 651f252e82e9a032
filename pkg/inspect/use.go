// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// NodeUse is what is used of a node's GPUs, in bytes of memory.
type NodeUse struct {
	// GPUs is what is used of each, by whomever; by index.
	GPUs map[int]int64
	// Claims is what the processes of claims' containers use.
	Claims map[ClaimOn]int64
	// Peaks is the most that they used, added up over containers.
	Peaks map[ClaimOn]int64
	// Gone is what of it pods use that are gone, and do not end; nil where there are none.
	Gone map[ClaimOn]int64
}

// ClaimOn is a claim on one of a node's GPUs.
type ClaimOn struct {
	Namespace string
	// Claim is its name. Where containers have the GPU by several, it is the names of all, joined by commas, as the
	// audit tells it (audit.ClaimUse).
	Claim string
	GPU   int
}

// fillUse says of each GPU and each share what is used of it, as far as that is known.
func (n *node) fillUse(use NodeUse) {
	for index, c := range n.gpus {
		if used, known := use.GPUs[index]; known {
			c.UsedMiB = mib(used)
		}
	}
	used, peaks := n.byHolder(use.Claims), n.byHolder(use.Peaks)
	for _, h := range n.holders {
		for i := range h.Shares {
			// Of who holds GPUs without a claim nobody counts it.
			if h.Origin == OriginDevicePlugin {
				continue
			}
			now := used[h][h.Shares[i].GPU]
			h.Shares[i].UsedMiB, h.Shares[i].PeakMiB = mib(now), mib(max(now, peaks[h][h.Shares[i].GPU]))
		}
	}
}

// byHolder adds up amounts of claims by holder and GPU.
func (n *node) byHolder(of map[ClaimOn]int64) map[*Holder]map[int]int64 {
	sums := map[*Holder]map[int]int64{}
	for on, bytes := range of {
		if h := n.user(on); h != nil {
			if sums[h] == nil {
				sums[h] = map[int]int64{}
			}
			sums[h][on.GPU] += bytes
		}
	}
	return sums
}

// user is the holder of whom it is what is used by the claims; nil where none is known. Whoever uses several claims is
// among the users of each, so it is that with the fewest pods: a group's are not known.
func (n *node) user(on ClaimOn) *Holder {
	var found *Holder
	for _, h := range n.holders {
		if h.Namespace == on.Namespace && h.hasSome(strings.Split(on.Claim, ","), on.GPU) &&
			(found == nil || cmp.Or(cmp.Compare(len(h.Others), len(found.Others)), cmp.Compare(len(h.Pods), len(found.Pods)),
				strings.Compare(h.Name(), found.Name())) < 0) {
			found = h
		}
	}
	return found
}

// hasSome reports whether the holder has the GPU, and one of the claims.
func (h *Holder) hasSome(claims []string, gpu int) bool {
	return slices.ContainsFunc(h.Shares, func(s Share) bool { return s.GPU == gpu }) &&
		slices.ContainsFunc(claims, func(claim string) bool { return slices.Contains(h.Claims, claim) })
}

func mib(bytes int64) *int64 {
	n := bytes >> 20
	return &n
}

// unknownUse is shown for what is not known.
const unknownUse = "-"

// usedGiB is an amount of memory in GiB.
func usedGiB(mib *int64) string {
	if mib == nil {
		return unknownUse
	}
	return fmt.Sprintf("%.1f", float64(*mib<<20)/float64(devices.GiB))
}

// usedMiB is what is used of all of a node's GPUs; nil where it is not known of one.
func (n *Node) usedMiB() *int64 {
	var sum int64
	for i := range n.GPUs {
		if n.GPUs[i].UsedMiB == nil {
			return nil
		}
		sum += *n.GPUs[i].UsedMiB
	}
	return &sum
}

// usedBy is what a holder uses of a GPU, nothing where it has none of it.
func (h *Holder) usedBy(index int) string {
	for _, s := range h.Shares {
		if s.GPU == index {
			return usedGiB(s.UsedMiB)
		}
	}
	return "0"
}
