// SPDX-License-Identifier: Apache-2.0

package migmode

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mig.json")
	if _, there, err := readRecord(path); there || err != nil {
		t.Errorf("before anything was changed: there %v, %v", there, err)
	}
	want := Record{Library: "/usr/lib/libnvidia-ml.so.1", UUID: "GPU-a", On: true}
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	if got, there, err := readRecord(path); got != want || !there || err != nil {
		t.Errorf("%+v, there %v, %v; want %+v", got, there, err, want)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readRecord(path); err == nil {
		t.Error("half a record is no error: the GPU would be left as it is, and nobody told")
	}
}

// A run without --may-change-mig has changed nothing.
func TestNothingIsPutBackWithoutARecord(t *testing.T) {
	if err := PutBack(t.Context(), filepath.Join(t.TempDir(), "mig.json")); err != nil {
		t.Error(err)
	}
}
