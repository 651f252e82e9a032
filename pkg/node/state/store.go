// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

const (
	// claimsDir and nodeFile lie beside each other.
	claimsDir     = "claims"
	nodeFile      = "node.json"
	recordSuffix  = ".json"
	quarantineDir = "quarantine"
	// incompleteFile stands in a directory of which it is not known yet whether
	// claims were prepared before it was made.
	incompleteFile = "incomplete"
	filePerm       = 0o600
	dirPerm        = 0o700
)

// Store is a directory of records, and what the node promised. Several processes may use one directory at
// once, as they do during a rolling update; LockClaim and LockNode order them.
type Store struct {
	dir      string
	nodeName string
	node     statefile.File[keptNode]
	queues   queues

	mu     sync.Mutex
	cache  map[types.UID]cached
	listed listing
}

// cached avoids decoding a file again that has not changed. Every write makes
// a new inode, so that size and times need not be trusted alone.
type cached struct {
	info   os.FileInfo
	record Record
}

// Open returns the node's store in the plugin's directory, which is made if need be (see Complete).
func Open(pluginDir, nodeName string) (*Store, error) {
	s := &Store{dir: filepath.Join(pluginDir, claimsDir), nodeName: nodeName, cache: map[types.UID]cached{},
		node: statefile.File[keptNode]{Path: filepath.Join(pluginDir, nodeFile), Synced: true}}
	return s, s.EnsureDir()
}

// EnsureDir makes the directory if it is not there, as after somebody removed it or
// all that was in it. What it makes is not complete.
func (s *Store) EnsureDir() error {
	if err := os.MkdirAll(filepath.Join(s.dir, quarantineDir), dirPerm); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	// Every directory that is in use has this file, also those of earlier versions.
	lock := filepath.Join(s.dir, lockFile)
	_, err := os.Stat(lock)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// In this order, so that a kill leaves a directory that is not complete.
	for _, path := range []string{filepath.Join(s.dir, incompleteFile), lock} {
		if err := touch(path); err != nil {
			return fmt.Errorf("set the state directory up: %w", err)
		}
	}
	return nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, filePerm)
	if err != nil {
		return err
	}
	return f.Close()
}

// Complete reports whether the records are all there are. They may not be from when the
// directory was made until SetComplete: another one may have been there before it, and
// been lost.
func (s *Store) Complete() (bool, error) {
	_, err := os.Stat(filepath.Join(s.dir, incompleteFile))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("find out whether the state directory was lost: %w", err)
	}
	return false, nil
}

// SetComplete says that every claim that is prepared has its record.
func (s *Store) SetComplete() error {
	if err := atomicfile.Remove(filepath.Join(s.dir, incompleteFile)); err != nil {
		return fmt.Errorf("note that the state directory is complete: %w", err)
	}
	return nil
}

// Damaged says that a record could not be read and was set aside. The other
// records are not affected.
type Damaged struct {
	UID types.UID
	// Kept is where the unreadable file lies now.
	Kept string
	// Reason says what is wrong with it.
	Reason error
}

func (d Damaged) Error() string {
	return fmt.Sprintf("the state of claim %s cannot be read: %v; the file was set aside as %s", d.UID, d.Reason, d.Kept)
}

func (d Damaged) Unwrap() error { return d.Reason }

// Get returns the claim's record, or false if there is none. An unreadable
// record is set aside and reported as a Damaged error. Hold LockClaim.
func (s *Store) Get(uid types.UID) (Record, bool, error) {
	path := s.path(uid)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		s.forget(uid)
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("read the state of claim %s: %w", uid, err)
	}
	if r, ok := s.remembered(uid, info); ok {
		return r, true, nil
	}
	r, found, err := s.file(uid, "").Load()
	switch {
	case err != nil && found:
		return Record{}, false, s.setAside(uid, err)
	case err != nil:
		return Record{}, false, fmt.Errorf("read the state of claim %s: %w", uid, err)
	case found:
		s.remember(uid, info, r)
	}
	return r, found, nil
}

// Put writes the claim's record; that of a prepared claim is on disk when Put
// returns. Any other outlives the process and not a power failure: nor does
// what it stands for, since no container has it yet. Hold LockClaim.
func (s *Store) Put(r Record) error {
	r.Version = r.version()
	if err := s.file(r.UID, r.Phase).Store(r); err != nil {
		return fmt.Errorf("write the state of claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	return nil
}

// Delete removes the claim's record and what a cut-off Put may have left; that
// there is none is not an error. Hold LockClaim.
func (s *Store) Delete(uid types.UID) error {
	s.forget(uid)
	path := s.path(uid)
	if err := errors.Join(atomicfile.Remove(path), atomicfile.Remove(path+atomicfile.TempSuffix)); err != nil {
		return fmt.Errorf("remove the state of claim %s: %w", uid, err)
	}
	return nil
}

// CleanUp removes what a cut-off Put may have left beside the claim's record.
// Hold LockClaim.
func (s *Store) CleanUp(uid types.UID) error {
	if err := atomicfile.Remove(s.path(uid) + atomicfile.TempSuffix); err != nil {
		return fmt.Errorf("clean up the state of claim %s: %w", uid, err)
	}
	return nil
}

// List returns all records, ordered by UID. Unreadable ones are set aside and
// reported, as Damaged errors joined into one, beside the readable ones.
func (s *Store) List() ([]Record, error) {
	uids, err := s.uids(recordSuffix)
	if err != nil {
		return nil, err
	}
	var records []Record
	var problems []error
	for _, uid := range uids {
		r, ok, err := s.Get(uid)
		if err != nil {
			problems = append(problems, err)
		} else if ok {
			records = append(records, r)
		}
	}
	return records, errors.Join(problems...)
}

// Unfinished returns the claims for which a cut-off Put left a temporary file.
func (s *Store) Unfinished() ([]types.UID, error) {
	return s.uids(recordSuffix + atomicfile.TempSuffix)
}

func (s *Store) uids(suffix string) ([]types.UID, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the state directory: %w", err)
	}
	var uids []types.UID
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && e.Type().IsRegular() {
			uids = append(uids, types.UID(name))
		}
	}
	sort.Slice(uids, func(i, j int) bool { return uids[i] < uids[j] })
	return uids, nil
}

func (s *Store) setAside(uid types.UID, reason error) error {
	s.forget(uid)
	kept := filepath.Join(s.dir, quarantineDir, fmt.Sprintf("%s-%d%s", uid, time.Now().UnixNano(), recordSuffix))
	if err := os.Rename(s.path(uid), kept); err != nil {
		return fmt.Errorf("the state of claim %s cannot be read (%w) and cannot be set aside: %w", uid, reason, err)
	}
	return Damaged{UID: uid, Kept: kept, Reason: reason}
}

// file is the claim's, for a record in the phase.
func (s *Store) file(uid types.UID, phase Phase) statefile.File[Record] {
	return statefile.File[Record]{Path: s.path(uid), Synced: phase == Prepared,
		Check: func(r Record) error { return r.check(uid) }}
}

func (s *Store) path(uid types.UID) string {
	return filepath.Join(s.dir, string(uid)+recordSuffix)
}

func (s *Store) remembered(uid types.UID, info os.FileInfo) (Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.cache[uid]
	if !ok || !os.SameFile(c.info, info) || c.info.Size() != info.Size() || !c.info.ModTime().Equal(info.ModTime()) {
		return Record{}, false
	}
	return c.record, true
}

func (s *Store) remember(uid types.UID, info os.FileInfo, r Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache[uid] = cached{info: info, record: r}
}

func (s *Store) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cache, uid)
}
