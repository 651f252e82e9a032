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

func (b *builder) readInstance(index int, d *resourceapi.Device) Instance {
	number := func(name resourceapi.QualifiedName) int64 { return ptr.Deref(d.Attributes[name].IntValue, 0) }
	text := func(name resourceapi.QualifiedName) string { return ptr.Deref(d.Attributes[name].StringValue, "") }
	i := Instance{Card: index, Device: d.Name, Profile: text(v1alpha1.AttrProfile), UUID: text(v1alpha1.AttrUUID),
		MemoryMiB: number(v1alpha1.AttrMemoryMiB), Start: number(v1alpha1.AttrPlacementStart),
		Size: number(v1alpha1.AttrPlacementSize)}
	for _, taint := range d.Taints {
		i.Closed = append(i.Closed, strings.TrimSuffix(strings.TrimPrefix(taint.Key, v1alpha1.DriverName+"/")+"="+taint.Value,
			"="))
	}
	return i
}

// offerInstance adds an instance, and its memory to its card, of which all that is offered is its
// instances.
func (n *node) offerInstance(i Instance, c Card, generation int64) {
	known := n.cards[c.Index]
	if known == nil {
		c.UUID, c.MemoryMiB, c.MemoryGiB.Total = "", 0, 0
		known = &card{Card: c, generation: generation, offered: []mode.Mode{mode.MIG}}
		n.cards[c.Index] = known
	}
	if known.generation != generation {
		return
	}
	n.instances[i.Device] = &i
	known.Model = cmp.Or(known.Model, c.Model)
	known.MemoryMiB += i.MemoryMiB
	known.MemoryGiB.Total += i.memoryGiB()
}

// chargeInstance charges an instance, and with it its card, with a claim.
func (b *builder) chargeInstance(n *node, claim *resourceapi.ResourceClaim, index int, device string) {
	c := b.card(n, index)
	i := n.instances[device]
	if i == nil {
		i = &Instance{Card: index, Device: device}
		n.instances[device] = i
	}
	c.holds = mode.MIG
	holder := n.holder(claim)
	i.Holder = holder.Namespace + "/" + holder.Name()
	c.MemoryGiB.take(i.memoryGiB())
	holder.hold(Share{Card: index, Mode: mode.MIG, MemoryGiB: i.memoryGiB()})
}

func (n *node) finishInstances() []Instance {
	var out []Instance
	for _, device := range slices.Sorted(maps.Keys(n.instances)) {
		out = append(out, *n.instances[device])
	}
	slices.SortStableFunc(out, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Card, b.Card), cmp.Compare(a.Start, b.Start))
	})
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
			fmt.Fprintf(&text, "%s\t%d\t%s\t%s\t%s\t%s\t\n", n.Name, i.Card, i.profile(), i.slices(), i.memory(),
				i.holder())
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return align(out, text.String())
}

// gone says that a claim holds the instance, and that no ResourceSlice says any more what it is.
func (i Instance) gone() bool { return i.Profile == "" }

func (i Instance) profile() string {
	if i.gone() {
		return i.Device + " (gone)"
	}
	return i.Profile
}

func (i Instance) slices() string {
	switch {
	case i.gone():
		return "-"
	case i.Size < 2:
		return fmt.Sprint(i.Start)
	}
	return fmt.Sprintf("%d-%d", i.Start, i.Start+i.Size-1)
}

func (i Instance) memory() string {
	if i.gone() {
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
