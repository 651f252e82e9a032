// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

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
	if got := encode(t, r); string(got) != before {
		t.Errorf("written again as %s", got)
	}
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
	if diff := cmp.Diff(r, got); diff != "" || err != nil {
		t.Errorf("%v, record (-want +got):\n%s", err, diff)
	}
}
