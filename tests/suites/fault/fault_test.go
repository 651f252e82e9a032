// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// workerEnv makes this test binary a worker; see workerMain for its value.
const workerEnv = "GPUSHARE_FAULT_WORKER"

func TestMain(m *testing.M) {
	if arguments := os.Getenv(workerEnv); arguments != "" {
		os.Exit(workerMain(arguments))
	}
	os.Exit(m.Run())
}

// How many processes are killed: alone, and beside another. Where too few of those alone were
// hit, more are, up to killsMost.
const (
	kills     = 60
	killsMost = 600
	pairKills = 24
)

// Kills that have to have hit: in the middle of a claim, so that something was left half done,
// and in a recovery from that. Of 60, some 25 and some 5 do.
const (
	halfDoneLeast   = 10
	inRecoveryLeast = 2
)

// longestWork is up to how long a worker may work before it is killed: some
// tens of preparations.
const longestWork = 40 * time.Millisecond

// Wherever the kill falls – also into the recovery from the one before – the
// next process finds each claim prepared or without a trace, what was answered
// to the kubelet still holds, and no GPU is promised twice.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	dir, seed := newNodeDir(t), rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	known := knowledge{}
	killed, halfDone, inRecovery := 0, 0, 0
	for killed < kills || halfDone < halfDoneLeast || inRecovery < inRecoveryLeast {
		if killed == killsMost {
			t.Fatalf("%d kills: %d left something half done, want %d; %d hit the recovery from that, want %d", killed,
				halfDone, halfDoneLeast, inRecovery, inRecoveryLeast)
		}
		left := dir.halfDone(t)
		p := start(t, dir, "a", seed+uint64(killed))
		if left && random.IntN(2) == 0 || random.IntN(8) == 0 {
			p.await(t, sayStarted)
			p.killAfter(t, time.Duration(random.Int64N(int64(4*time.Millisecond))))
			if left && !slices.ContainsFunc(p.heard, says(sayRecovered)) {
				inRecovery++
			}
		} else {
			p.await(t, sayRecovered)
			known.check(t, dir)
			p.goOn(t)
			p.killAfter(t, time.Duration(random.Int64N(int64(longestWork))))
			if dir.halfDone(t) {
				halfDone++
			}
		}
		known.hear(p.heard)
		killed++
		if t.Failed() {
			t.Fatalf("after kill %d", killed)
		}
	}
	t.Logf("%d kills: %d or more left something half done, %d hit the recovery from that", killed, halfDone, inRecovery)
	dir.recoverAndEmpty(t, known, "a")
}

// Two instances serve at once during a rolling update. Whatever they do to the
// same GPUs, and whichever of them is killed, at no moment is more promised
// than there is.
func TestTwoProcessesNeverOverGrant(t *testing.T) {
	t.Parallel()
	dir, seed := newNodeDir(t), rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	known := knowledge{}
	names := []string{"a", "b"}
	running := map[string]*process{}
	for i := range uint64(pairKills) {
		for _, name := range names {
			if running[name] == nil {
				running[name] = start(t, dir, name, seed+i)
				running[name].await(t, sayRecovered)
				running[name].goOn(t)
			}
		}
		observed := 0
		for until := time.Now().Add(longestWork); time.Now().Before(until) || observed == 0; observed++ {
			dir.checkPromises(t)
		}
		victim := names[random.IntN(2)]
		running[victim].killAfter(t, 0)
		known.hear(running[victim].heard)
		delete(running, victim)
		if t.Failed() {
			t.Fatalf("after kill %d", i+1)
		}
	}
	for _, p := range running {
		p.killAfter(t, 0)
		known.hear(p.heard)
	}
	dir.recoverAndEmpty(t, known, names...)
}

// certainty is what is known of a claim after its worker was killed.
type certainty string

const (
	held    certainty = "prepared"
	free    certainty = "not prepared"
	unknown certainty = "one or the other"
)

// knowledge is what the workers have told of their claims; a claim that was
// never spoken of is free.
type knowledge map[types.UID]certainty

func (k knowledge) hear(lines []string) {
	for _, line := range lines {
		what, about, _ := strings.Cut(line, " ")
		uid := types.UID(about)
		switch what {
		case sayPrepared:
			k[uid] = held
		case sayUnprepared, sayRefused:
			k[uid] = free
		case sayPreparing:
			// A claim that was prepared stays so when it is prepared again.
			if k[uid] != held {
				k[uid] = unknown
			}
		case sayUnpreparing:
			k[uid] = unknown
		}
	}
}

// check compares a node that was just recovered with what is known of it, and
// learns what was unknown.
func (k knowledge) check(t *testing.T, dir nodeDir) {
	t.Helper()
	records := dir.checkPromises(t)
	dir.checkFiles(t, records)
	recorded := map[types.UID]bool{}
	for _, r := range records {
		recorded[r.UID] = true
		if r.Phase != state.Prepared {
			t.Errorf("claim %s is in phase %s after the recovery", r.UID, r.Phase)
		}
		if k[r.UID] == free || k[r.UID] == "" {
			t.Errorf("claim %s is prepared, but it was unprepared or never asked for", r.UID)
		}
	}
	for uid, known := range k {
		if known == held && !recorded[uid] {
			t.Errorf("claim %s is lost: the kubelet was told that it is prepared", uid)
		}
		k[uid] = free
		if recorded[uid] {
			k[uid] = held
		}
	}
}

func newNodeDir(t *testing.T) nodeDir {
	t.Helper()
	dir := nodeDir(t.TempDir())
	expect.NoError(t, os.Mkdir(dir.cdi(), 0o755))
	return dir
}

// checkPromises adds up what is granted at this moment and returns the records.
// With the node's lock held nothing is entered, so that what is read file by
// file was there all at once, or less.
func (d nodeDir) checkPromises(t *testing.T) []state.Record {
	t.Helper()
	store, err := state.Open(string(d), "n1")
	expect.NoError(t, err)
	unlock, err := store.LockNode(t.Context())
	expect.NoError(t, err)
	records, err := store.List()
	unlock()
	expect.NoError(t, err)
	units, owners := map[string]int64{}, map[string]int{}
	whole := map[string]bool{}
	for _, r := range records {
		for _, g := range r.Grants {
			units[g.GPU.UUID] += g.Units
			owners[g.GPU.UUID]++
			whole[g.GPU.UUID] = whole[g.GPU.UUID] || !g.Mode.Shared()
		}
	}
	for gpu := range owners {
		if units[gpu] > gpuMiB/1024 {
			t.Errorf("%d GiB of GPU %s are promised, it has %d", units[gpu], gpu, gpuMiB/1024)
		}
		if whole[gpu] && owners[gpu] > 1 {
			t.Errorf("GPU %s is promised as a whole and to %d others", gpu, owners[gpu]-1)
		}
	}
	return records
}

// checkFiles checks that there is a record and a spec for each prepared claim,
// which a container runtime can use, and no other file.
func (d nodeDir) checkFiles(t *testing.T, records []state.Record) {
	t.Helper()
	want := []string{"claims/lock"}
	cache, err := upstream.NewCache(upstream.WithSpecDirs(d.cdi()), upstream.WithAutoRefresh(false))
	expect.NoError(t, err)
	for _, r := range records {
		want = append(want, "claims/"+string(r.UID)+".json", "cdi/"+r.CDISpec+".json")
		for _, g := range r.Grants {
			if id := cdi.QualifiedName(cdi.DeviceName(r.UID, g.Request, g.Device, g.ShareID)); cache.GetDevice(id) == nil {
				t.Errorf("claim %s: a container runtime does not find CDI device %s: %v", r.UID, id, cache.GetErrors())
			}
		}
	}
	got := d.files(t)
	slices.Sort(want)
	expect.Equal(t, want, got, "files")
}

// files lists all files, also those set aside, in order.
func (d nodeDir) files(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(string(d), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(string(d), path)
		files = append(files, relative)
		return err
	})
	expect.NoError(t, err)
	slices.Sort(files)
	return files
}

// halfDone reports whether a kill visibly left something for the recovery to do. It
// does not read the records, so that some are missed.
func (d nodeDir) halfDone(t *testing.T) bool {
	t.Helper()
	records, specs := 0, 0
	for _, file := range d.files(t) {
		switch {
		case strings.HasSuffix(file, ".tmp"):
			return true
		case strings.HasPrefix(file, "cdi/"):
			specs++
		case strings.HasSuffix(file, ".json"):
			records++
		}
	}
	return records != specs
}

// recoverAndEmpty ends a test: after a last recovery the node is as it should
// be, and when all claims are unprepared nothing is left.
func (d nodeDir) recoverAndEmpty(t *testing.T, known knowledge, names ...string) {
	t.Helper()
	p := start(t, d, names[0], 0)
	p.await(t, sayRecovered)
	p.killAfter(t, 0)
	known.check(t, d)
	preparer, err := d.preparer(func(_ context.Context, damaged state.Damaged) { t.Error(damaged) })
	expect.NoError(t, err)
	for _, name := range names {
		unprepareAll(t, preparer, name)
	}
	expect.Equal(t, []string{"claims/lock"}, d.files(t), "files after all was unprepared")
}

func unprepareAll(t *testing.T, preparer *prepare.Preparer, name string) {
	t.Helper()
	for _, c := range claimsOf(name) {
		if err := preparer.Unprepare(t.Context(), c.UID); err != nil {
			t.Error(err)
		}
	}
}
