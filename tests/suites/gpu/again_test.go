// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// The plugin reads the GPUs every minute: that tells the same, and costs little.
func TestReadingAgainTellsTheSame(t *testing.T) {
	n := openNode(t)
	reader := gpunvml.NewReader(n.lib, gpunvml.Options{})
	first, err := reader.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		start := time.Now()
		again, err := reader.Read(t.Context())
		read := time.Since(start)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Error(diff)
		}
		start = time.Now()
		n.base(t)
		t.Logf("read %d GPUs in %s, made the base edits in %s", len(again.GPUs), read, time.Since(start))
	}
}
