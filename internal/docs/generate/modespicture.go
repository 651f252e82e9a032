// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Measures of the picture, in pixels.
const (
	rowHeight, top, bottom = 68, 34, 34
	left, gpuWidth, gap    = 136, 164, 8
	gpuHeight              = 44
	pictureWidth           = left + 4*(gpuWidth+gap)
	// most is how many claims have a colour.
	most = 5
)

// pictureStyle has a colour for each claim of a node, and others for dark surroundings.
const pictureStyle = `text{font:13px system-ui,sans-serif;fill:#1f2328}.b{font-weight:600}` +
	`.s{font-size:11px;fill:#57606a}.t{font-size:11px}.gpu{fill:#eaeef2;stroke:#8c959f}.part{fill:none;stroke:#8c959f}` +
	`.c0{fill:#b6e3ff}.c1{fill:#aceebb}.c2{fill:#ffdf9e}.c3{fill:#ecd8ff}.c4{fill:#ffd3cc}` +
	`@media (prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#8d96a0}.gpu{fill:#21262d;stroke:#6e7681}` +
	`.part{stroke:#6e7681}` +
	`.c0{fill:#0c447c}.c1{fill:#1a5c2e}.c2{fill:#6b4a06}.c3{fill:#512a87}.c4{fill:#82281f}}`

// picture is an SVG in the making.
type picture struct{ strings.Builder }

func (p *picture) begin(rows int) {
	height := top + rows*rowHeight + bottom
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d"`+
		" role=\"img\">\n<title>One node of four GPUs in each mode, and what claims that come one after the other "+
		"get</title>\n<style>%s</style>\n", pictureWidth, height, pictureStyle)
	p.text("b", 8, 22, "Mode")
	for gpu := range 4 {
		p.text("b", column(gpu), 22, fmt.Sprintf("GPU %d", gpu))
	}
}

// end draws the legend.
func (p *picture) end(rows int) {
	const swatch = 22
	y := top + rows*rowHeight + 6
	for claim := range most {
		p.rect(fmt.Sprintf("c%d", claim), left+claim*swatch, y, swatch-4, 14)
		p.text("t", left+claim*swatch+6, y+11, fmt.Sprint(claim+1))
	}
	p.text("s", left+most*swatch+4, y+11, "claims in the order in which they come")
	free := column(2) + 20
	p.rect("gpu", free, y, swatch-4, 14)
	p.text("s", free+swatch+4, y+11, "free memory")
	part := free + 110
	p.rect("part", part, y, swatch-4, 14)
	p.text("s", part+swatch+4, y+11, "MIG instance")
	p.WriteString("</svg>\n")
}

// column is where the GPU begins.
func column(gpu int) int { return left + gpu*(gpuWidth+gap) }

func (p *picture) rect(class string, x, y, width, height int) {
	fmt.Fprintf(p, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="3"/>`+"\n", class, x, y, width, height)
}

func (p *picture) text(class string, x, y int, text string) {
	if text == "" {
		return
	}
	fmt.Fprintf(p, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, text)
}

// node draws a node: as much of each GPU as each claim has, from the left, and below the GPU what they have in common.
func (p *picture) node(row int, label, isolation string, n inspect.Node) {
	y, total := top+row*rowHeight, int64(0)
	for _, gpu := range n.GPUs {
		total = max(total, gpu.MemoryGiB.Total) // of a GPU that is cut the instances alone count
	}
	p.text("b", 8, y+14, label)
	p.text("s", 8, y+30, isolation)
	p.text("s", 8, y+44, fmt.Sprintf("GPUs of %d GiB", total))
	for _, gpu := range n.GPUs {
		p.rect("gpu", column(gpu.Index), y, gpuWidth, gpuHeight)
	}
	taken := map[int]int64{}
	for i, holder := range n.Holders {
		instance := slices.IndexFunc(n.Instances, func(i inspect.Instance) bool {
			return i.Holder == holder.Namespace+"/"+holder.Name()
		})
		for _, share := range holder.Shares {
			first, second, below := said(n.Mode, share, len(holder.Shares) > 1)
			from := taken[share.GPU]
			taken[share.GPU] += share.MemoryGiB
			if instance >= 0 {
				from = n.Instances[instance].Start * total / memorySlices
				first, second, _ = strings.Cut(n.Instances[instance].Profile, ".")
			}
			x, width := column(share.GPU)+int(from*gpuWidth/total), int(share.MemoryGiB*gpuWidth/total)
			p.rect(fmt.Sprintf("c%d", i), x+1, y+1, width-2, gpuHeight-2)
			p.text("t", x+6, y+18, first)
			p.text("t", x+6, y+34, second)
			if from == 0 {
				p.text("s", x, y+gpuHeight+13, below)
			}
		}
	}
	for _, i := range n.Instances {
		p.rect("part", column(i.GPU)+int(i.Start*gpuWidth/memorySlices), y, int(i.MemoryMiB*gpuWidth/1024/total), gpuHeight)
	}
}

// memorySlices are those into which NVIDIA's driver cuts the memory of a GPU in MIG mode.
const memorySlices = 8

// said is what a claim has of a GPU, in two lines, and how the GPU is held.
func said(node mode.Mode, s inspect.Share, several bool) (first, second, below string) {
	first = fmt.Sprintf("%d GiB", s.MemoryGiB)
	if !s.Mode.Shared() {
		first = "whole GPU"
	}
	if s.Mode.CountsCores() {
		second = fmt.Sprintf("%d %%", s.CoresPercent)
	}
	switch {
	case node == mode.Dynamic:
		below = "as in mode " + label(s.Mode)
	case node == mode.Topology && several:
		below = "linked set"
	}
	return first, second, below
}

// label is how a node's label calls the mode.
func label(m mode.Mode) string {
	switch m {
	case mode.Exclusive:
		return "default"
	case mode.CoreMem:
		return "core_mem"
	default:
		return string(m)
	}
}
