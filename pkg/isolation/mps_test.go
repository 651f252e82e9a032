// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

// byMPS is the back end on a node whose supervisor is of an earlier version.
func byMPS(t *testing.T) (*Registry, mps.Dir) {
	t.Helper()
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	return NewRegistry(Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module", MPSOverheadMiB: 500}), dir
}

// What a container may use is said before it starts: its server gives nobody more.
func TestRoomIsMadeForTheContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		grants []claim.Grant
		want   mps.Limits
	}{
		"memory":             {[]claim.Grant{grant(mode.MPS, 0, 3, 0)}, mps.Limits{MemoryMiB: 3726, ThreadPercent: 100}},
		"memory and compute": {[]claim.Grant{grant(mode.CoreMem, 0, 3, 25)}, mps.Limits{MemoryMiB: 3726, ThreadPercent: 25}},
		"its limits are lifted": {[]claim.Grant{lifted(grant(mode.MPS, 0, 3, 0))},
			mps.Limits{MemoryMiB: 16130, ThreadPercent: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			backends, dir := byMPS(t)
			uuid := tc.grants[0].Card.UUID
			if err := dir.SetStatus(uuid, mps.Status{State: mps.Ready}); err != nil {
				t.Fatal(err)
			}
			c, err := ForClaim(backends, tc.grants, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.SetUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			use, err := dir.Use(uuid)
			if diff := cmp.Diff(mps.Use{Claimed: true, Limits: tc.want, Seq: 1}, use); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if diff := cmp.Diff(map[string]mps.Limits{uuid: tc.want}, c.MPSLimits()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLevelOn(t *testing.T) {
	backends, dir := byMPS(t)
	b, err := backends.For(mode.MPS)
	if err != nil {
		t.Fatal(err)
	}
	if got := LevelOn(b, "GPU-a"); got != LevelCooperative {
		t.Errorf("level %s", got)
	}
	if err := dir.SetStatus("GPU-a", mps.Status{DriverEnforced: true}); err != nil {
		t.Fatal(err)
	}
	if got := LevelOn(b, "GPU-a"); got != LevelDriver {
		t.Errorf("level %s", got)
	}
	if got := LevelOn(none{}, "GPU-a"); got != LevelNone {
		t.Errorf("level %s", got)
	}
}
