// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// instanceGone is the value of the taint of an instance that is published because a claim holds it, and is not there.
// Package publish sets it.
const instanceGone = "mig-instance-gone"

func (b *builder) readInstance(index int, d *resourceapi.Device) Instance {
	number := func(name resourceapi.QualifiedName) int64 { return ptr.Deref(d.Attributes[name].IntValue, 0) }
	text := func(name resourceapi.QualifiedName) string { return ptr.Deref(d.Attributes[name].StringValue, "") }
	i := Instance{GPU: index, Device: d.Name, Profile: text(v1alpha1.AttrProfile), UUID: text(v1alpha1.AttrUUID),
		MemoryMiB: number(v1alpha1.AttrMemoryMiB), Start: number(v1alpha1.AttrPlacementStart),
		Size: number(v1alpha1.AttrPlacementSize), Dynamic: len(d.ConsumesCounters) > 0}
	if i.Dynamic {
		i.UUID = "" // it is the GPU's
	}
	for _, taint := range d.Taints {
		i.Closed = append(i.Closed, strings.TrimSuffix(strings.TrimPrefix(taint.Key, v1alpha1.DriverName+"/")+"="+taint.Value,
			"="))
		// The scheduler keeps the place of one that was made on demand: that stays a part of the GPU.
		i.gone = i.gone || !i.Dynamic && taint.Key == v1alpha1.TaintUnhealthy && taint.Value == instanceGone
	}
	return i
}

// offerInstance adds an instance, and its memory to its GPU, of which all that is offered is its
// instances.
func (n *node) offerInstance(i Instance, c GPU, generation int64) {
	known := n.gpus[c.Index]
	if known == nil {
		c.UUID, c.MemoryMiB, c.MemoryGiB.Total = "", 0, 0
		known = &unfinishedGPU{GPU: c, generation: generation, offered: []mode.Mode{mode.MIG}}
		n.gpus[c.Index] = known
	}
	if known.generation != generation {
		return
	}
	n.instances[i.Device] = &i
	known.Model = cmp.Or(known.Model, c.Model)
	if i.Dynamic || i.gone {
		return // of places see addPlaces
	}
	known.MemoryMiB += i.MemoryMiB
	known.MemoryGiB.Total += i.memoryGiB()
}

// addPlaces adds to each GPU what can be made of it beside the instances that somebody has cut: as much memory as
// places have together of which no two overlap.
func (n *node) addPlaces() {
	places := map[int][]*Instance{}
	for _, i := range n.instances {
		if i.Dynamic && n.cutOver(i) {
			i.gone = true
		} else if i.Dynamic {
			places[i.GPU] = append(places[i.GPU], i)
		}
	}
	for index, of := range places {
		c := n.gpus[index]
		c.MemoryMiB += mostOf(of, func(i *Instance) int64 { return i.MemoryMiB })
		c.MemoryGiB.Total += mostOf(of, func(i *Instance) int64 { return i.memoryGiB() })
	}
}

// cutOver reports whether somebody has cut an instance where a place is. The driver publishes such a place only while a
// claim holds it.
func (n *node) cutOver(place *Instance) bool {
	for _, i := range n.instances {
		if !i.Dynamic && !i.gone && i.GPU == place.GPU && i.Start < place.Start+place.Size && place.Start < i.Start+i.Size {
			return true
		}
	}
	return false
}

// mostOf is the most that places have together of which no two overlap.
func mostOf(places []*Instance, weight func(*Instance) int64) int64 {
	slices.SortFunc(places, func(a, b *Instance) int { return cmp.Compare(a.Start+a.Size, b.Start+b.Size) })
	// most[n] is that of the first n, which end no later than the others.
	most := make([]int64, len(places)+1)
	for n, place := range places {
		before := n
		for before > 0 && places[before-1].Start+places[before-1].Size > place.Start {
			before--
		}
		most[n+1] = max(most[n], most[before]+weight(place))
	}
	return most[len(places)]
}

// chargeInstance charges an instance, and with it its GPU, with a claim.
func (b *builder) chargeInstance(n *node, claim *resourceapi.ResourceClaim, index int, device string) {
	c := b.gpu(n, index)
	i := n.instances[device]
	if i == nil {
		i = &Instance{GPU: index, Device: device, gone: true}
		n.instances[device] = i
	}
	c.holds = mode.MIG
	holder := n.holder(claim)
	i.Holder = holder.Namespace + "/" + holder.Name()
	c.MemoryGiB.take(i.memoryGiB())
	holder.hold(Share{GPU: index, Mode: mode.MIG, MemoryGiB: i.memoryGiB()})
}

func (n *node) finishInstances() []Instance {
	var out []Instance
	for _, device := range slices.Sorted(maps.Keys(n.instances)) {
		if i := n.instances[device]; !i.Dynamic || i.Holder != "" {
			out = append(out, *i)
		}
	}
	out = append(out, n.freeSlices(out)...)
	slices.SortStableFunc(out, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Start, b.Start))
	})
	return out
}

// freeSlices are those of which instances can be made beside the ones that there are.
func (n *node) freeSlices(there []Instance) []Instance {
	free := map[int]map[int64]bool{}
	for _, i := range n.instances {
		if !i.Dynamic {
			continue
		}
		if free[i.GPU] == nil {
			free[i.GPU] = map[int64]bool{}
		}
		for slice := i.Start; slice < i.Start+i.Size; slice++ {
			free[i.GPU][slice] = true
		}
	}
	for _, i := range there {
		if i.gone && !i.Dynamic {
			continue // the scheduler does not keep its place
		}
		for slice := i.Start; slice < i.Start+i.Size; slice++ {
			delete(free[i.GPU], slice)
		}
	}
	var out []Instance
	for _, index := range slices.Sorted(maps.Keys(free)) {
		for _, slice := range slices.Sorted(maps.Keys(free[index])) {
			if last := len(out) - 1; last >= 0 && out[last].GPU == index && out[last].Start+out[last].Size == slice {
				out[last].Size++
				continue
			}
			out = append(out, Instance{GPU: index, Start: slice, Size: 1, Dynamic: true})
		}
	}
	return out
}

// printInstances prints a line for each MIG instance; nothing where there is none.
func printInstances(out io.Writer, t *Table) error {
	var text strings.Builder
	for _, n := range t.Nodes {
		for _, i := range n.Instances {
			if text.Len() == 0 {
				text.WriteString("\nMIG instances:\nNAME\tGPU\tPROFILE\tSLICES\tMEMORY(GiB)\tALLOCATED TO\t\n")
			}
			fmt.Fprintf(&text, "%s\t%d\t%s\t%s\t%s\t%s\t\n", n.Name, i.GPU, i.profile(), i.slices(), i.memory(),
				i.holder())
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return align(out, text.String())
}

// free says that nothing is there yet.
func (i Instance) free() bool { return i.Dynamic && i.Holder == "" }

func (i Instance) profile() string {
	switch {
	case i.free():
		return "(free)"
	case i.gone:
		return i.Device + " (gone)"
	}
	return i.Profile
}

func (i Instance) slices() string {
	switch {
	case i.gone:
		return "-"
	case i.Size < 2:
		return fmt.Sprint(i.Start)
	}
	return fmt.Sprintf("%d-%d", i.Start, i.Start+i.Size-1)
}

func (i Instance) memory() string {
	if i.gone || i.free() {
		return "-"
	}
	return fmt.Sprint(i.memoryGiB())
}

func (i Instance) holder() string {
	text := cmp.Or(i.Holder, "-")
	if len(i.Closed) > 0 {
		text += " (closed: " + strings.Join(i.Closed, ", ") + ")"
	}
	return text
}
