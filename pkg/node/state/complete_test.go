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
	if isComplete(t, openAgain(t, dir)) {
		t.Error("it counts as complete after a restart")
	}
	if err := s.SetComplete(); err != nil {
		t.Fatal(err)
	}
	if !isComplete(t, openAgain(t, dir)) {
		t.Error("it does not count as complete any more")
	}
}

// Earlier versions left nothing but the lock file in a directory without claims.
func TestADirectoryOfAnEarlierVersionIsComplete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), claimsDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, lockFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !isComplete(t, openAgain(t, dir)) {
		t.Error("all claims would be looked up after the update")
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
