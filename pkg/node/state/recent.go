// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"slices"
	"time"
)

const (
	// recentLimit is how long Recent may be without what was damaged in place.
	recentLimit = 10 * time.Second
	// settled is how long ago a directory must have changed for its time to tell of each later change: file systems
	// count it in ticks of the kernel, of some milliseconds.
	settled = 100 * time.Millisecond
)

// listing is what List returned, and the directory as it was before.
type listing struct {
	records []Record
	dir     os.FileInfo
	at      time.Time
}

// Recent is List for those who look every few seconds: it looks at the directory alone while that has not changed. Each
// record is a file that is made or renamed, by whatever process, so nothing is missed but what was damaged in
// place, for ten seconds at most.
func (s *Store) Recent() ([]Record, error) {
	dir, err := os.Stat(s.dir)
	if err != nil {
		return s.List() // which says what is wrong
	}
	now := time.Now()
	s.mu.Lock()
	last := s.listed
	s.mu.Unlock()
	if last.dir != nil && os.SameFile(last.dir, dir) && last.dir.ModTime().Equal(dir.ModTime()) &&
		now.Sub(last.at) < recentLimit {
		return slices.Clone(last.records), nil
	}
	records, err := s.List()
	// A time that is yet to come is of a clock that was set back since, and long ago.
	if age := now.Sub(dir.ModTime()); err != nil || age >= 0 && age < settled {
		return records, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = listing{slices.Clone(records), dir, now}
	return records, nil
}
