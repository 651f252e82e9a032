// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"math"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/stranded"
)

// Lost is what the pods that hold GPUs, if more of them came, could not have of the free GPUs.
type Lost struct {
	FreeGPUs float64 `json:"freeGPUs"`
	// StrandedGPUs are those beside which their nodes have too little CPU or memory left.
	StrandedGPUs float64 `json:"strandedGPUs"`
	// FragmentedGPUs are what one of these pods could not have on average, for any reason.
	FragmentedGPUs float64 `json:"fragmentedGPUs"`
}

// addLost adds what is lost, where it is known.
func (b *builder) addLost(t *Table) {
	if b.in.Bound == nil {
		return
	}
	lost := stranded.Find(stranded.Cluster{Slices: b.in.Slices, Claims: b.in.Claims, Nodes: b.in.Nodes, Pods: b.in.Bound})
	t.Lost = &Lost{FreeGPUs: hundredths(lost.Free), FragmentedGPUs: hundredths(lost.Fragmented)}
	sum := 0.0
	for i := range t.Nodes {
		n := &t.Nodes[i]
		sum += lost.Stranded[n.Name]
		n.StrandedGPUs = hundredths(lost.Stranded[n.Name])
	}
	t.Lost.StrandedGPUs = hundredths(sum)
}

// String is a line for people, empty where hardly anything is lost.
func (l *Lost) String() string {
	if l == nil || l.StrandedGPUs < 0.05 && l.FragmentedGPUs < 0.05 {
		return ""
	}
	return fmt.Sprintf("Free GPUs In Cluster: %.1f (stranded %.1f, fragmented %.1f)\n", l.FreeGPUs, l.StrandedGPUs,
		l.FragmentedGPUs)
}

func hundredths(gpus float64) float64 { return math.Round(gpus*100) / 100 }
