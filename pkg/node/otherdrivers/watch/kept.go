// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/otherdrivers"
)

// keptFile is where it is kept, as JSON, on which GPUs devices of other drivers are.
type keptFile string

// keptDevice is one of them.
type keptDevice struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Name   string `json:"name"`
	// UUID is that of the GPU.
	UUID string `json:"uuid"`
}

// load returns what was kept; nothing, if there is none or it cannot be read: what is published
// is seen again.
func (f keptFile) load(ctx context.Context) map[otherdrivers.Device]string {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var kept []keptDevice
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Which GPUs other DRA drivers had cannot be read, going by what they publish",
			"file", string(f))
		return nil
	}
	out := map[otherdrivers.Device]string{}
	for _, d := range kept {
		out[otherdrivers.Device{Driver: d.Driver, Pool: d.Pool, Name: d.Name}] = d.UUID
	}
	return out
}

func (f keptFile) store(on map[otherdrivers.Device]string) error {
	kept := []keptDevice{}
	for d, uuid := range on {
		kept = append(kept, keptDevice{d.Driver, d.Pool, d.Name, uuid})
	}
	slices.SortFunc(kept, func(a, b keptDevice) int {
		return cmp.Or(cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Name, b.Name))
	})
	data, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(string(f), data, 0o600, true); err != nil {
		return fmt.Errorf("remember which GPUs other drivers have: %w", err)
	}
	return nil
}
