// SPDX-License-Identifier: Apache-2.0

// Package seen remembers since when a program has seen something, by its own clock: times in objects are by those of
// other machines.
package seen

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Since remembers since when each key has been seen. It is safe for concurrent use.
type Since[K comparable] struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	began map[K]time.Time
}

// NewSince returns a Since that has seen nothing.
func NewSince[K comparable](c clock.PassiveClock) *Since[K] {
	return &Since[K]{clock: c, began: map[K]time.Time{}}
}

// For returns for how long the key has been seen: not at all before the first call.
func (s *Since[K]) For(key K) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if _, known := s.began[key]; !known {
		s.began[key] = now
	}
	return now.Sub(s.began[key])
}

// Begin has the key seen from now on.
func (s *Since[K]) Begin(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began[key] = s.clock.Now()
}

// Forget has the key not seen.
func (s *Since[K]) Forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.began, key)
}
