// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"path/filepath"
	"testing"
)

func isComplete(t *testing.T, s *Store) bool {
	t.Helper()
	complete, err := s.Complete()
	if err != nil {
		t.Fatal(err)
	}
	return complete
}

// Whoever finds no directory cannot know whether there was one.
func TestANewDirectoryIsNotCompleteUntilSomebodySaysSo(t *testing.T) {
	s, dir := open(t)
	if isComplete(t, s) {
		t.Error("a new directory counts as complete")
	}
	again, err := Open(dir)
	if err != nil || isComplete(t, again) {
		t.Errorf("it counts as complete after a restart: %v", err)
	}
	if err := s.SetComplete(); err != nil {
		t.Fatal(err)
	}
	if again, err = Open(dir); err != nil || !isComplete(t, again) {
		t.Errorf("it does not count as complete any more: %v", err)
	}
}

// Earlier versions left nothing but the lock file in a directory without claims.
func TestADirectoryOfAnEarlierVersionIsComplete(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, lockFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil || !isComplete(t, s) {
		t.Errorf("all claims would be looked up after the update: %v", err)
	}
}

func TestADirectoryThatIsRemovedWhileInUse(t *testing.T) {
	s, dir := open(t)
	if err := s.SetComplete(); err != nil {
		t.Fatal(err)
	}
	unlock, err := s.LockNode(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := s.List(); err == nil {
		t.Error("that nothing is there counts as nothing prepared")
	}
	unlock, err = s.LockClaim(t.Context(), "a")
	if err != nil {
		t.Fatalf("no claim can be worked on any more: %v", err)
	}
	defer unlock()
	if err := s.Put(record("a")); err != nil {
		t.Error(err)
	}
	if isComplete(t, s) {
		t.Error("what is there now counts as all there is")
	}
}
