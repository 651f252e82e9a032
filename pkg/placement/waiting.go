// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Waiting says that a claim waits for what a node holds back to spread its shares.
// gpu-compat-controller, which sees who waits, tells it to the node's plugin.
type Waiting struct {
	// Claim is the claim's UID.
	Claim string `json:"claim"`
	// At is when that was so, by the clock of who says it: it tells a Waiting from the one before it, and is compared
	// with nothing.
	At time.Time `json:"at"`
	// GiB and Shares are the most that it asks for of one GPU.
	GiB    int64 `json:"gib"`
	Shares int64 `json:"shares"`
	// GPUs are those that it fits on beside what is allocated; empty as long as any may do.
	GPUs []Needed `json:"gpus,omitempty"`
}

// Needed is how much claims have to have of a GPU together for one more to fit: what is
// allocated, which the node may not know of, and what that one asks for.
type Needed struct {
	Index  int   `json:"index"`
	GiB    int64 `json:"gib"`
	Shares int64 `json:"shares"`
}

// waitingFor is for how long a node heeds a Waiting: the scheduler looks for GPUs as soon as they are offered.
const waitingFor = 5 * time.Second

// Encode is how a node shows it.
func (w Waiting) Encode() (string, error) {
	encoded, err := json.Marshal(w)
	if err != nil {
		return "", fmt.Errorf("encode what claim %s waits for: %w", w.Claim, err)
	}
	return string(encoded), nil
}

// DecodeWaiting reads what Encode wrote.
func DecodeWaiting(encoded string) (Waiting, error) {
	var w Waiting
	if err := json.Unmarshal([]byte(encoded), &w); err != nil {
		return Waiting{}, fmt.Errorf("read what a claim waits for: %w", err)
	}
	return w, nil
}

// Wanted is what a node holds back less because of it, where it read it at a time since,
// and some claims have been granted what they wait for. It is false where that is over.
func (w Waiting) Wanted(since, now time.Time, granted []string) (Wanted, bool) {
	if w.Claim == "" || now.Sub(since) >= waitingFor {
		return Wanted{}, false
	}
	var wanted Wanted
	if w.Shares > 1 {
		// More of its kind are likely to follow.
		wanted.One = gpu.Amount{Units: w.GiB, Shares: w.Shares}
	}
	if !slices.Contains(granted, w.Claim) {
		wanted.GPUs = map[int]gpu.Amount{}
		for _, n := range w.GPUs {
			wanted.GPUs[n.Index] = gpu.Amount{Units: n.GiB, Shares: n.Shares}
		}
	}
	return wanted, w.Shares > 1 || len(wanted.GPUs) > 0
}
