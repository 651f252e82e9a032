// SPDX-License-Identifier: Apache-2.0

// Package news tells what has not been said yet from what has, so that a loop logs an error once.
package news

import "sync"

// Teller remembers what was said last. The zero value has said nothing. It may be used concurrently.
type Teller struct {
	mu   sync.Mutex
	last map[string]string
}

// Is reports whether there is something to say about a thing that was not said last. Nothing to say is the empty
// message; after that the same is news again.
func (t *Teller) Is(about, message string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if message == t.last[about] {
		return false
	}
	if t.last == nil {
		t.last = map[string]string{}
	}
	t.last[about] = message
	return message != ""
}

// IsError is Is of an error, of which there is one at a time.
func (t *Teller) IsError(err error) bool {
	if err == nil {
		return t.Is("", "")
	}
	return t.Is("", err.Error())
}
