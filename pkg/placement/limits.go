// SPDX-License-Identifier: Apache-2.0

package placement

import "github.com/gpushare/dra-driver-gpushare/pkg/gpu"

// Shared is a GPU as one mode offers shares of it. Full is whether the mode takes any
// further claim there.
type Shared struct {
	GPU
	// Room is what claims can have of it together, Granted what they have as the scheduler counts it.
	Room, Granted gpu.Amount
	// ByName is what the scheduler takes for used beside Used: it counts by names, and claims hold another
	// GPU, or one that is gone, by the name of this one.
	ByName int64
}

// Wanted is what claims wait for that the limits for one share after the other would keep
// from them.
type Wanted struct {
	// One is the most that one of them asks for of one GPU: where several containers share
	// it, several shares. Zero is one share, of any size.
	One gpu.Amount
	// Lifted is how often each GPU with room for it offers One beside its limit, of any size and whether it is ahead
	// or not.
	Lifted int64
}

// Limits returns how much claims may have together of each GPU, in the order of the GPUs,
// so that they stay even however many claims are allocated at once: what is taken of any
// two GPUs differs by the largest share at most, if it did before. largest is the largest
// share of those that were granted.
//
// A GPU that is behind takes one share, of any size. One that is ahead takes one that leaves
// it no further ahead of what is behind now than the largest share, and none if there is no
// such share. Granted may lag behind what the scheduler has allocated: limits are for all
// that it allocates, and what is behind only grows by that.
func Limits(gpus []Shared, largest int64, w Wanted) []gpu.Amount {
	least := behind(gpus)
	out := make([]gpu.Amount, len(gpus))
	for i, g := range gpus {
		out[i] = limit(g, least, largest, w)
	}
	return out
}

// behind is the GPU of which the least part is taken, of those that take claims, as the scheduler counts: nobody waits
// for a GPU to catch up that it does not let. Its memory is zero if none takes any.
func behind(gpus []Shared) GPU {
	var least GPU
	for _, g := range gpus {
		g.Used += g.ByName
		if !g.Full && (least.Memory == 0 || fuller(g.GPU, least) < 0) {
			least = g.GPU
		}
	}
	return least
}

func limit(g Shared, least GPU, largest int64, w Wanted) gpu.Amount {
	more := gpu.Amount{Units: g.Room.Units, Shares: max(1, w.One.Shares)}
	if w.One.Shares > 1 {
		// Several claims could take that many shares, too.
		largest = max(largest, w.One.Units)
		more.Units = largest
	}
	ahead := int64(0)
	if least.Memory > 0 {
		ahead = max(0, g.Used-least.Used*g.Memory/least.Memory)
	}
	if ahead > 0 {
		more.Units = largest - ahead
	}
	if more.Units <= 0 {
		more = gpu.Amount{}
	}
	if w.Lifted > 0 && g.Room.Units-g.Granted.Units >= w.One.Units {
		if ahead > 0 {
			more.Shares = 0
		}
		more = gpu.Amount{Units: g.Room.Units, Shares: more.Shares + w.Lifted*max(1, w.One.Shares)}
	}
	if g.Full {
		more = gpu.Amount{}
	}
	out := gpu.Amount{
		Units:  min(g.Room.Units, g.Granted.Units+more.Units),
		Shares: min(g.Room.Shares, g.Granted.Shares+more.Shares),
	}
	// The scheduler takes a capacity of nothing for one that it need not look at.
	return gpu.Amount{Units: max(1, out.Units), Shares: max(1, out.Shares)}
}

// More is what a GPU with the limit takes beside what was granted: nothing where either is
// used up.
func More(limit, granted gpu.Amount) gpu.Amount {
	more := limit.Minus(granted)
	if more.Units <= 0 || more.Shares <= 0 {
		return gpu.Amount{}
	}
	return more
}
