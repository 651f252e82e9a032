// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Recent tells what List does after each change of another process, however soon, and reads nothing again in between.
func TestRecent(t *testing.T) {
	for _, ago := range []time.Duration{time.Minute, -time.Hour} {
		recent(t, ago)
	}
}

// recent changes records whose last change was so long ago: less than nothing, where the clock was set back since.
func recent(t *testing.T, ago time.Duration) {
	t.Helper()
	ours, dir := open(t)
	theirs := openAgain(t, dir)
	// As if the last change was long ago.
	rest := func() {
		t.Helper()
		before := time.Now().Add(-ago)
		expect.NoError(t, os.Chtimes(dir, before, before))
	}
	has := func(want ...types.UID) {
		t.Helper()
		for _, list := range []func() ([]Record, error){ours.Recent, ours.Recent, ours.List} {
			records, err := list()
			if err != nil || len(records) != len(want) {
				t.Fatalf("%d records, %v; want %v", len(records), err, want)
			}
			for i, r := range records {
				expect.Equal(t, want[i], r.UID, "record %d is of", i)
			}
		}
	}
	put := func(uid types.UID) {
		t.Helper()
		expect.NoError(t, theirs.Put(record(uid)))
	}
	has()
	put("a")
	has("a")
	put("b")
	has("a", "b")
	rest()
	has("a", "b")
	put("c")
	has("a", "b", "c")
	rest()
	has("a", "b", "c")
	expect.NoError(t, theirs.Delete("b"))
	has("a", "c")
	rest()
	has("a", "c")
	// Nobody does this; it shows that the files are left alone.
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "a"+recordSuffix), []byte("{"), 0o600))
	if records, err := ours.Recent(); err != nil || len(records) != 2 {
		t.Errorf("%d records, %v, from what was read before", len(records), err)
	}
	ours.listed.at = time.Now().Add(-recentLimit)
	if records, err := ours.Recent(); err == nil || len(records) != 1 {
		t.Errorf("%d records, %v, although one is damaged", len(records), err)
	}
	// What was set aside is not told twice.
	has("c")
}
