// SPDX-License-Identifier: Apache-2.0

package signal

import "sync"

// Broadcast wakes everybody who waits for it. The zero value is ready for use, and nil never wakes anybody.
type Broadcast struct {
	mu sync.Mutex
	c  chan struct{}
}

// Next is closed by the next Send.
func (b *Broadcast) Next() <-chan struct{} {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

// Send wakes all who wait. It does not block.
func (b *Broadcast) Send() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}
