// SPDX-License-Identifier: Apache-2.0

package score

import (
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// stock is how many GPUs there are of a model, and how much memory they have together.
type stock struct{ gpus, memory int64 }

// stocks are those of a cluster, by model.
type stocks map[string]stock

// of are the GPUs of some models, all if none is named.
func (s stocks) of(models []string) stock {
	var sum stock
	for model, has := range s {
		if len(models) == 0 || slices.Contains(models, model) {
			sum.gpus += has.gpus
			sum.memory += has.memory
		}
	}
	return sum
}

// demand is what pods with GPUs ask for.
type demand struct {
	// cpu and memory are what they ask for beside each GPU.
	cpu, memory float64
	// scarce is how much GPUs of a model are asked for by name, 1 where as much as all GPUs are asked for in any way.
	scarce map[string]float64
	shapes []shape
}

// shape is what some of the pods ask of GPUs, and how many of them: the weights of all are 1.
type shape struct {
	requests []Request
	variants []variant
	weight   float64
}

// variant is what pods of a shape ask for beside GPUs.
type variant struct {
	cpu, memory int64
	weight      float64
}

// demandOf is what kinds of pods ask for in a cluster with these GPUs.
func demandOf(pods []weighted, has stocks) demand {
	d := demand{scarce: map[string]float64{}}
	var cpu, memory, gpus float64
	all := has.of(nil)
	for _, p := range pods {
		number := float64(p.number)
		cpu += number * float64(p.ask.CPU)
		memory += number * float64(p.ask.Memory)
		for i := range p.ask.Requests {
			r := &p.ask.Requests[i]
			named := has.of(r.Models)
			asked := number * r.gpus(named)
			gpus += asked
			if len(r.Models) == 0 || named.gpus == 0 {
				continue
			}
			for j, model := range r.Models {
				if !slices.Contains(r.Models[:j], model) {
					d.scarce[model] += asked / float64(named.gpus)
				}
			}
		}
	}
	if gpus > 0 {
		d.cpu, d.memory = cpu/gpus, memory/gpus
		for model, asked := range d.scarce {
			d.scarce[model] = min(1, asked*float64(all.gpus)/gpus)
		}
	}
	d.shapes = shapesOf(pods)
	return d
}

// shapesOf are the shapes of the most frequent kinds.
func shapesOf(pods []weighted) []shape {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b weighted) int { return b.number - a.number })
	pods = pods[:min(len(pods), mixKinds)]
	all := 0
	for _, p := range pods {
		all += p.number
	}
	var shapes []shape
	at := map[string]int{}
	for _, p := range pods {
		key := shapeKey(p.ask.Requests)
		i, is := at[key]
		if !is {
			i = len(shapes)
			at[key], shapes = i, append(shapes, shape{requests: p.ask.Requests})
		}
		v := variant{p.ask.CPU, p.ask.Memory, float64(p.number) / float64(all)}
		shapes[i].variants, shapes[i].weight = append(shapes[i].variants, v), shapes[i].weight+v.weight
	}
	return shapes
}

// gpus is how much a request asks for of GPUs as they are on average.
func (r *Request) gpus(of stock) float64 {
	if r.Mode == Whole {
		return float64(r.Count)
	}
	return float64(r.Count) * max(part(r.Memory*of.gpus, of.memory), part(r.Cores, gpu.WholeCores))
}

// alike are GPUs of a node of which the same is left: number of them, rest of each, in GPUs.
type alike struct {
	gpu    GPU
	number int
	rest   float64
}

// places are for what is calculated of a node, so that nothing is allocated.
type places struct {
	groups  []alike
	scratch []GPU
}

// read notes what is free of GPUs.
func (p *places) read(gpus []GPU) (free float64) {
	p.groups = p.groups[:0]
	for i := range gpus {
		g := &gpus[i]
		if last := len(p.groups) - 1; last >= 0 && p.groups[last].gpu == *g {
			p.groups[last].number++
			free += p.groups[last].rest
		} else if rest := g.rest(); rest > 0 {
			p.groups = append(p.groups, alike{*g, 1, rest})
			free += rest
		}
	}
	return free
}

// cost is what is lost of a node's GPUs as it is, in GPUs, and what is free of them.
func (d *demand) cost(n Node, p *places) (cost, free float64) {
	if free = p.read(n.GPUs); free == 0 {
		return 0, 0
	}
	return d.stranded(n, free) + fragmentsWeight*d.fragments(n, free, p), free
}

// stranded are free GPUs for which the node has too little CPU or memory left.
func (d *demand) stranded(n Node, free float64) float64 {
	stranded := 0.0
	for _, beside := range []struct {
		left int64
		each float64
	}{{n.CPU, d.cpu}, {n.Memory, d.memory}} {
		if beside.each > 0 {
			stranded = max(stranded, free-float64(beside.left)/beside.each)
		}
	}
	return stranded
}

// fragments are what a pod of those that come cannot have of the free GPUs, on average.
func (d *demand) fragments(n Node, free float64, p *places) float64 {
	fragments := 0.0
	for i := range d.shapes {
		s := &d.shapes[i]
		small, room := s.room(n.GPUs, p)
		if !room {
			fragments += s.weight * free
			continue
		}
		for _, v := range s.variants {
			if v.cpu > n.CPU || v.memory > n.Memory {
				fragments += v.weight * free
			} else {
				fragments += v.weight * small
			}
		}
	}
	return fragments
}

// room reports whether GPUs have room for a shape, and how much is free of those that have none for any of its
// requests.
func (s *shape) room(gpus []GPU, p *places) (small float64, room bool) {
	fitting := 0
	for i := range p.groups {
		if of := &p.groups[i]; s.fits(&of.gpu) {
			fitting += of.number
		} else {
			small += float64(of.number) * of.rest
		}
	}
	if len(s.requests) == 1 {
		return small, fitting >= s.requests[0].Count
	}
	if fitting == 0 {
		return small, false
	}
	p.scratch = append(p.scratch[:0], gpus...)
	for i := range s.requests {
		if !s.requests[i].take(p.scratch) {
			return 0, false
		}
	}
	return small, true
}

// fits reports whether a GPU has room for any request of a shape.
func (s *shape) fits(g *GPU) bool {
	for i := range s.requests {
		if s.requests[i].fits(g) {
			return true
		}
	}
	return false
}
