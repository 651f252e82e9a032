// SPDX-License-Identifier: Apache-2.0

package consumption

import (
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

const mibPerGiB = 1 << 10

// Now are the shares that a table shows, of one namespace, or of all if it is empty.
func Now(t *inspect.Table, workloads Workloads, namespace string) []Share {
	var out []Share
	at := map[[2]string]int{}
	for _, node := range t.Nodes {
		for _, holder := range node.Holders {
			if len(holder.Shares) == 0 || namespace != "" && holder.Namespace != namespace {
				continue
			}
			share := Share{Workload: workloads.holder(holder), Amounts: ofShares(holder.Shares)}
			if len(holder.Pods) == 1 {
				share.Pod = holder.Pods[0]
			}
			key := [2]string{holder.Namespace, holder.Name()}
			if i, known := at[key]; known {
				out[i].add(share.Amounts)
				continue
			}
			at[key] = len(out)
			out = append(out, share)
		}
	}
	return out
}

func (w Workloads) holder(h inspect.Holder) Workload {
	switch {
	case len(h.Pods) > 0:
		return w.Pod(h.Namespace, h.Pods[0])
	case len(h.Others) > 0:
		kind, name, _ := strings.Cut(h.Others[0], "/")
		return Workload{h.Namespace, kind, name}
	default:
		return w.Claim(h.Namespace, h.Claims[0])
	}
}

func ofShares(shares []inspect.Share) Amounts {
	var sum Amounts
	for i, s := range shares {
		granted := float64(s.MemoryGiB)
		amounts := Amounts{GrantedGiB: &granted, UsedGiB: fromMiB(s.UsedMiB), PeakGiB: fromMiB(s.PeakMiB)}
		if i == 0 {
			sum = amounts
		} else {
			sum.add(amounts)
		}
	}
	return sum
}

func fromMiB(mib *int64) *float64 {
	if mib == nil {
		return nil
	}
	gib := float64(*mib) / mibPerGiB
	return &gib
}
