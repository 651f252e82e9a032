// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func isComplete(t *testing.T, s *Store) bool {
	t.Helper()
	complete, err := s.Complete()
	expect.NoError(t, err)
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
	expect.NoError(t, s.SetComplete())
	if !isComplete(t, openAgain(t, dir)) {
		t.Error("it does not count as complete any more")
	}
}

// Earlier versions left nothing but the lock file in a directory without claims.
func TestADirectoryOfAnEarlierVersionIsComplete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), claimsDir)
	expect.NoError(t, os.Mkdir(dir, 0o700))
	expect.NoError(t, os.WriteFile(filepath.Join(dir, lockFile), nil, 0o600))
	if !isComplete(t, openAgain(t, dir)) {
		t.Error("all claims would be looked up after the update")
	}
}

func TestADirectoryThatIsRemovedWhileInUse(t *testing.T) {
	s, dir := open(t)
	expect.NoError(t, s.SetComplete())
	unlock, err := s.LockNode(t.Context())
	expect.NoError(t, err)
	expect.NoError(t, os.RemoveAll(dir))
	unlock()
	if _, err := s.List(); err == nil {
		t.Error("that nothing is there counts as nothing prepared")
	}
	unlock, err = s.LockClaim(t.Context(), "a")
	expect.NoErrorf(t, err, "no claim can be worked on any more")
	defer unlock()
	expect.NoError(t, s.Put(record("a")))
	if isComplete(t, s) {
		t.Error("what is there now counts as all there is")
	}
}
