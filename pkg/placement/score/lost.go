// SPDX-License-Identifier: Apache-2.0

package score

// Lost is what pods that ask for what the last ones asked for cannot have of the free GPUs. All amounts are in GPUs.
type Lost struct {
	// Free is what is left of all GPUs.
	Free float64
	// Stranded is what is left of GPUs beyond what CPU and memory are left for, by node, where there is any.
	Stranded map[string]float64
	// Fragmented is what a pod cannot have on average, for want of CPU or memory, or because the rests of the GPUs are
	// too small or too few.
	Fragmented float64
}

// Lost is that of the nodes as they are. Before a pod is learned, nothing is lost.
func (x *Index) Lost() Lost {
	x.renew()
	lost := Lost{Stranded: map[string]float64{}}
	for i := range x.nodes {
		n := x.nodes[i].node
		free := x.places.read(n.GPUs)
		if free == 0 {
			continue
		}
		lost.Free += free
		lost.Fragmented += x.demand.fragments(n, free, &x.places)
		// Pods without GPUs can have requested more than there is.
		if stranded := min(free, x.demand.stranded(n, free)); stranded > 0 {
			lost.Stranded[x.nodes[i].name] = stranded
		}
	}
	return lost
}

// LossOf is what is lost of one node, as nodes are ranked for pods: what is stranded, and a part of what is fragmented.
func (x *Index) LossOf(n Node) float64 {
	x.renew()
	cost, _ := x.demand.cost(n, &x.places)
	return cost
}
