// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

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
	// UUID is that of the GPU; empty if nobody knows on which one it is.
	UUID string `json:"uuid"`
}

// open returns what was kept, nothing if there is none. A file that cannot be read is set aside, and
// damage says so: what is published is seen again, and of what NVIDIA's driver published the kubelet tells.
func (f keptFile) open() (on map[otherdrivers.Device]string, damage, err error) {
	on, damage = f.load()
	if damage == nil || errors.Is(damage, fs.ErrNotExist) {
		return on, nil, nil
	}
	aside := string(f) + ".damaged"
	if err := os.Rename(string(f), aside); err != nil {
		return nil, nil, fmt.Errorf("set the damaged file aside: %w", err)
	}
	return nil, fmt.Errorf("which GPUs pods have of DRA drivers that were removed cannot be read, and lies in %s now: "+
		"pods with claims of gpu.nvidia.com count on every GPU until they end, where that driver is not back; pods with "+
		"GPUs of another removed driver are not seen, so end them: %w", aside, damage), nil
}

func (f keptFile) load() (map[otherdrivers.Device]string, error) {
	data, err := os.ReadFile(string(f))
	if err != nil {
		return nil, err
	}
	var kept []keptDevice
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, fmt.Errorf("decode %s: %w", string(f), err)
	}
	if kept == nil {
		return nil, fmt.Errorf("decode %s: it lacks the list of devices", string(f))
	}
	on := map[otherdrivers.Device]string{}
	for _, d := range kept {
		on[otherdrivers.Device{Driver: d.Driver, Pool: d.Pool, Name: d.Name}] = d.UUID
	}
	return on, nil
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
