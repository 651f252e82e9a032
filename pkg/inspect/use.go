// SPDX-License-Identifier: Apache-2.0

package inspect

import (
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
	for _, h := range n.holders {
		for i := range h.Shares {
			var sum int64
			for on, bytes := range use.Claims {
				if on.Namespace == h.Namespace && on.GPU == h.Shares[i].GPU &&
					slices.ContainsFunc(strings.Split(on.Claim, ","), h.has) {
					sum += bytes
				}
			}
			// Of who holds GPUs without a claim nobody counts it.
			if h.Origin != OriginDevicePlugin {
				h.Shares[i].UsedMiB = mib(sum)
			}
		}
	}
}

// has says whether the claim is one of the holder's.
func (h *Holder) has(claim string) bool { return slices.Contains(h.Claims, claim) }

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
