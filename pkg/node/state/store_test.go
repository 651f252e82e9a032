// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func record(uid types.UID) Record {
	return Record{
		Version: Version, Phase: Prepared, UID: uid, Namespace: "team", Name: "claim-" + string(uid), BootID: "boot",
		CDISpec: "spec-" + string(uid),
		Grants: []claim.Grant{{
			Request: "r", Pool: "n1/gpu", Device: "gpu-0-share", ShareID: "s", Mode: mode.Share, Units: 3,
			GPU: claim.GPU{UUID: "GPU-a", MemoryMiB: 16130}, Config: v1alpha1.Default(),
		}},
	}
}

// open opens a store, and returns the directory of its records.
func open(t *testing.T) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), claimsDir)
	return openAgain(t, dir), dir
}

// openAgain is for another process.
func openAgain(t *testing.T, records string) *Store {
	t.Helper()
	s, err := Open(filepath.Dir(records), "n1")
	expect.NoError(t, err)
	return s
}

// encode and decode are what becomes of a record in its file.
func encode(t testing.TB, r Record) []byte {
	t.Helper()
	r.Version = r.version()
	data, err := json.Marshal(r)
	expect.NoError(t, err)
	return data
}

func decode(data []byte, uid types.UID) (r Record, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, err
	}
	return r, r.check(uid)
}

func TestRoundTrip(t *testing.T) {
	s, dir := open(t)
	for _, uid := range []types.UID{"b", "a"} {
		expect.NoError(t, s.Put(record(uid)))
	}
	another := openAgain(t, dir)
	got, err := another.List()
	expect.NoError(t, err)
	expect.Equal(t, []Record{record("a"), record("b")}, got, "records")
	expect.NoError(t, s.Delete("a"))
	if _, ok, err := another.Get("a"); ok || err != nil {
		t.Errorf("deleted record is still there: %v, %v", ok, err)
	}
	expect.NoErrorf(t, s.Delete("a"), "second delete")
}

// A linked set is several grants of one result, which a plugin of the first
// version would take for several results.
func TestSetIsWrittenInItsVersion(t *testing.T) {
	s, dir := open(t)
	set := record("a")
	set.Version, set.Order = VersionSets, []string{"GPU-b", "GPU-a"}
	for i := range 2 {
		set.Grants = append(set.Grants[:i], claim.Grant{
			Request: "r", Pool: "n1/gpu", Device: "gpus-0-1", Mode: mode.Topology,
			GPU: claim.GPU{Index: i, UUID: "GPU-" + string(rune('a'+i))}, Config: v1alpha1.Default(),
		})
	}
	survives(t, s, dir, set)
}

// survives checks that another process reads the record as it was put.
func survives(t *testing.T, s *Store, dir string, r Record) {
	t.Helper()
	expect.NoError(t, s.Put(r))
	another := openAgain(t, dir)
	got, _, err := another.Get(r.UID)
	expect.NoError(t, err)
	expect.Equal(t, r, got, "record")
}

// A plugin that knows no instances would take one for a GPU that is gone, and unprepare it or not by that.
func TestInstanceIsWrittenInItsVersion(t *testing.T) {
	s, dir := open(t)
	r := record("a")
	r.Version = VersionMIG
	r.Grants[0].Mode = mode.MIG
	r.Grants[0].GPU.MIG = &claim.Instance{ParentUUID: "GPU-p", Profile: "1g.10gb+me", ProfileID: 20, GI: 13,
		Start: 6, Size: 1}
	survives(t, s, dir, r)
}

// A record as the first version of the plugin wrote it.
func TestRecordOfTheFirstVersion(t *testing.T) {
	s, dir := open(t)
	const written = `{"version":1,"phase":"Prepared","uid":"a","namespace":"team","name":"claim-a","bootID":"boot",` +
		`"grants":[{"request":"r","pool":"n1/gpu","device":"gpu-0","mode":"exclusive",` +
		`"card":{"index":0,"uuid":"GPU-a","model":"M","memoryMiB":16130},"config":{}},` +
		`{"request":"r","pool":"n1/gpu","device":"gpu-1","mode":"exclusive",` +
		`"card":{"index":1,"uuid":"GPU-b","model":"M","memoryMiB":16130},"config":{}}],"cdiSpec":"spec-a"}`
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "a.json"), []byte(written), 0o600))
	r, ok, err := s.Get("a")
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	if results := claim.Results(r.Grants); len(results) != 2 || r.Grants[1].GPU.UUID != "GPU-b" || len(r.Order) != 0 {
		t.Errorf("read as %+v", r)
	}
}

func TestChangeByAnotherProcessIsSeen(t *testing.T) {
	s, dir := open(t)
	other := openAgain(t, dir)
	r := record("a")
	r.Phase = Preparing
	expect.NoError(t, s.Put(r))
	_, _, err := other.Get("a")
	expect.NoError(t, err)
	expect.NoError(t, s.Put(record("a")))
	got, _, err := other.Get("a")
	expect.NoError(t, err)
	expect.Equal(t, Prepared, got.Phase, "the phase: the first reading was remembered although the file changed")
}

func TestDamagedRecordIsSetAsideAlone(t *testing.T) {
	good := encode(t, record("a"))
	for name, content := range map[string]string{
		"truncated":      string(good[:len(good)/2]),
		"empty":          "",
		"binary":         "\x00\x00\x00\x00",
		"other claim":    strings.Replace(string(good), `"uid":"a"`, `"uid":"z"`, 1),
		"newer version":  strings.Replace(string(good), `"version":1`, `"version":5`, 1),
		"no version":     strings.Replace(string(good), `"version":1,`, "", 1),
		"unknown phase":  strings.Replace(string(good), `"Prepared"`, `"Half"`, 1),
		"without grants": strings.Replace(string(good), `"grants":[`, `"grants":[],"x":[`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := open(t)
			expect.NoError(t, s.Put(record("b")))
			expect.NoError(t, os.WriteFile(filepath.Join(dir, "a.json"), []byte(content), 0o600))
			records, err := s.List()
			var damaged Damaged
			if !errors.As(err, &damaged) || damaged.UID != "a" {
				t.Fatalf("error %v, want one about claim a", err)
			}
			kept, readErr := os.ReadFile(damaged.Kept)
			if readErr != nil || string(kept) != content {
				t.Errorf("the damaged file was not kept as it was: %q, %v", kept, readErr)
			}
			if len(records) != 1 || records[0].UID != "b" {
				t.Errorf("records %v: the good one was lost", records)
			}
			_, err = s.List()
			expect.NoErrorf(t, err, "reported a second time")
		})
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	s, dir := open(t)
	data := encode(t, record("a"))
	newer := strings.Replace(string(data), `"version":1`, `"version":1,"addedLater":{"x":1}`, 1)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "a.json"), []byte(newer), 0o600))
	if _, ok, err := s.Get("a"); !ok || err != nil {
		t.Errorf("a record with a field from a newer plugin was refused: %v", err)
	}
}

func TestUnfinished(t *testing.T) {
	s, dir := open(t)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "a.json.tmp"), []byte("{"), 0o600))
	uids, err := s.Unfinished()
	if err != nil || len(uids) != 1 || uids[0] != "a" {
		t.Fatalf("unfinished %v, %v", uids, err)
	}
	if records, err := s.List(); len(records) != 0 || err != nil {
		t.Errorf("a temporary file counts as a record: %v, %v", records, err)
	}
	expect.NoError(t, s.Delete("a"))
	_, err = os.Stat(filepath.Join(dir, "a.json.tmp"))
	expect.ErrorIs(t, err, os.ErrNotExist)
}

func TestLocksExclude(t *testing.T) {
	s, dir := open(t)
	other := openAgain(t, dir)
	var wg sync.WaitGroup
	stores := []*Store{s, other}
	// The counter's reading and writing are two steps on purpose; it is atomic
	// only because the race detector does not know of file locks.
	var counter atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				unlock, err := stores[i%2].LockClaim(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				before := counter.Load()
				if nodeUnlock, err := stores[i%2].LockNode(t.Context()); err != nil {
					t.Error(err)
				} else {
					nodeUnlock()
				}
				counter.Store(before + 1)
				unlock()
			}
		})
	}
	wg.Wait()
	expect.Equal(t, 400, counter.Load(), "counted: where less, two held the lock at once")
}

func FuzzDecode(f *testing.F) {
	good := encode(f, record("a"))
	f.Add(good)
	f.Add(good[:20])
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data, "a")
		if err != nil {
			return
		}
		second, err := decode(encode(t, r), "a")
		expect.NoErrorf(t, err, "what was read cannot be read again")
		expect.Equal(t, r, second, "lost on the way")
	})
}

// What a container may have outlives a power failure. Until a claim is prepared none has it, and each
// write that waits for the disk costs the start of a pod as long as all the rest.
func TestOnlyRecordsOfPreparedClaimsWaitForTheDisk(t *testing.T) {
	s, _ := open(t)
	for phase, want := range map[Phase]bool{Preparing: false, Prepared: true} {
		expect.Equal(t, want, s.file("a", phase).Synced, "the write of a record in phase %q is synced", phase)
	}
}

// isComplete checks whether the store knows all that is prepared.
func isComplete(t *testing.T, s *Store, want bool, what string) {
	t.Helper()
	complete, err := s.Complete()
	expect.NoError(t, err)
	expect.Equal(t, want, complete, "%s counts as complete", what)
}

// Whoever finds no directory cannot know whether there was one.
func TestANewDirectoryIsNotCompleteUntilSomebodySaysSo(t *testing.T) {
	s, dir := open(t)
	isComplete(t, s, false, "a new directory")
	isComplete(t, openAgain(t, dir), false, "a new directory, after a restart")
	expect.NoError(t, s.SetComplete())
	isComplete(t, openAgain(t, dir), true, "one of which somebody said so")
}

// Earlier versions left nothing but the lock file in a directory without claims.
func TestADirectoryOfAnEarlierVersionIsComplete(t *testing.T) {
	dir := filepath.Join(t.TempDir(), claimsDir)
	expect.NoError(t, os.Mkdir(dir, 0o700))
	expect.NoError(t, os.WriteFile(filepath.Join(dir, lockFile), nil, 0o600))
	isComplete(t, openAgain(t, dir), true, "the directory, after the update")
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
	isComplete(t, s, false, "what is there now")
}

// before is a record of a share by MPS as the plugin wrote it that knew no effects.
const before = `{"version":1,"phase":"Prepared","uid":"a","namespace":"team","name":"claim-a","bootID":"boot",` +
	`"pods":["p1"],"podNames":["pod-1"],"podClaimName":"gpu","grants":[{"request":"r","pool":"n1/gpu",` +
	`"device":"gpu-0-mps","shareID":"s","mode":"mps","card":{"index":0,"uuid":"GPU-a","model":"M","memoryMiB":16130},` +
	`"units":3,"slots":1,"isolation":"mps","config":{}}],"cdiSpec":"spec-a"}`

// A plugin reads what the one before it wrote, and writes of it what that one would.
func TestRecordWithoutEffects(t *testing.T) {
	s, dir := open(t)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "a.json"), []byte(before), 0o600))
	r, ok, err := s.Get("a")
	if err != nil || !ok || r.Effects != nil || r.Grants[0].Isolation != "mps" {
		t.Fatalf("%+v, %v, %v", r, ok, err)
	}
	expect.Equal(t, before, string(encode(t, r)), "written again")
}

// Effects come back in their order, whatever a later plugin says of them beside. For the plugin
// before they are one more field of a version that it reads.
func TestRecordWithEffects(t *testing.T) {
	s, dir := open(t)
	r, err := decode([]byte(before), "a")
	expect.NoError(t, err)
	r.Effects = []Effect{{Name: "mps-client", GPU: "GPU-b"}, {Name: "mps-client", GPU: "GPU-a"}, {Name: "other"}}
	expect.NoError(t, s.Put(r))
	path := filepath.Join(dir, "a.json")
	written, err := os.ReadFile(path)
	expect.NoError(t, err)
	var fields map[string]json.RawMessage
	expect.NoError(t, json.Unmarshal(written, &fields))
	without := bytes.Replace(written, append([]byte(`,"effects":`), fields["effects"]...), nil, 1)
	expect.Equal(t, before, string(without), "the plugin before reads %s", without)
	newer := strings.Replace(string(written), `{"name":"other"`, `{"addedLater":1,"name":"other"`, 1)
	expect.NoError(t, os.WriteFile(path, []byte(newer), 0o600))
	got, _, err := s.Get("a")
	if diff := expect.Diff(r, got); diff != nil || err != nil {
		t.Errorf("%v, record %v", err, diff)
	}
}

// A plugin reads what the one before it wrote of the node, in the place where that one left it.
func TestNodeOfThePluginBefore(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, "")
	expect.NoError(t, err)
	if n, found, err := s.Node(); found || err != nil {
		t.Errorf("of a new node it knows %+v, %v", n, err)
	}
	const written = `{"wanted":"share","overruled":{"gpushare":"true"},"published":"cgpu","isolation":{"cgpu":"mps"},` +
		`"closed":true,"devicePluginLeft":"2026-11-29T07:00:00Z"}`
	path := filepath.Join(dir, "node.json")
	expect.NoError(t, os.WriteFile(path, []byte(written), 0o600))
	n, found, err := s.Node()
	want := Node{Wanted: mode.Share, Overruled: map[string]string{"gpushare": "true"}, Published: mode.CGPU,
		Isolation: map[mode.Mode]string{mode.CGPU: "mps"}, Closed: true,
		DevicePluginLeft: time.Date(2026, 11, 29, 7, 0, 0, 0, time.UTC)}
	if diff := expect.Diff(want, n); diff != nil || !found || err != nil {
		t.Errorf("%v, %v %v", found, err, diff)
	}
	expect.NoError(t, s.PutNode(n))
	if again, err := os.ReadFile(path); err != nil || string(again) != written {
		t.Errorf("written again as %s, %v", again, err)
	}
}

// The image of a machine can have what the node that it was taken of promised: who starts of it has promised nothing.
func TestWhatAnotherNodePromised(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		node  string
		found bool
	}{{"n1", true}, {"n2", false}} {
		s, err := Open(dir, test.node)
		expect.NoError(t, err)
		if test.node == "n1" {
			expect.NoError(t, s.PutNode(Node{Wanted: mode.Share, Published: mode.Share}))
		}
		n, found, err := s.Node()
		if err != nil || found != test.found || (n.Wanted == mode.Share) != test.found {
			t.Errorf("%s knows %+v, %t, %v", test.node, n, found, err)
		}
	}
}

func TestDamagedNodeIsAnError(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, "n1")
	expect.NoError(t, err)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"wanted":"sh`), 0o600))
	if n, found, err := s.Node(); found || err == nil || n.Wanted != "" {
		t.Errorf("%+v, %v, %v", n, found, err)
	}
}
