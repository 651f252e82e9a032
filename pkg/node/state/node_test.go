// SPDX-License-Identifier: Apache-2.0

package state

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// A plugin reads what the one before it wrote of the node, in the place where that one left it.
func TestNodeOfThePluginBefore(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
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
	if diff := cmp.Diff(want, n); diff != "" || !found || err != nil {
		t.Errorf("%v, %v (-want +got):\n%s", found, err, diff)
	}
	expect.NoError(t, s.PutNode(n))
	if again, err := os.ReadFile(path); err != nil || string(again) != written {
		t.Errorf("written again as %s, %v", again, err)
	}
}

func TestDamagedNodeIsAnError(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	expect.NoError(t, err)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"wanted":"sh`), 0o600))
	if n, found, err := s.Node(); found || err == nil || n.Wanted != "" {
		t.Errorf("%+v, %v, %v", n, found, err)
	}
}
