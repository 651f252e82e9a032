// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"fmt"
	"time"
)

// Waiting says that a claim waits that may need what a node holds back to spread its shares.
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
}

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
