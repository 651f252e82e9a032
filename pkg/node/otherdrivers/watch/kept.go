// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/otherdrivers"
)

// keptFile is where it is kept on which GPUs devices of other drivers are.
type keptFile statefile.File[[]keptDevice]

// keptDevice is one of them.
type keptDevice struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Name   string `json:"name"`
	// UUID is that of the GPU; empty if nobody knows on which one it is.
	UUID string `json:"uuid"`
}

func newKeptFile(path string) keptFile {
	return keptFile{Path: path, Synced: true, Check: func(kept []keptDevice) error {
		if kept == nil {
			return errors.New("it lacks the list of devices")
		}
		return nil
	}}
}

// open returns what was kept, nothing if there is none. A file that cannot be read is set aside, and
// damage says so: what is published is seen again, and of what NVIDIA's driver published the kubelet tells.
func (f keptFile) open() (on map[otherdrivers.Device]string, damage, err error) {
	file := statefile.File[[]keptDevice](f)
	kept, found, damage := file.Load()
	if damage != nil {
		return nil, fmt.Errorf("which GPUs pods have of DRA drivers that were removed cannot be read, and lies in %s now: "+
			"pods with claims of gpu.nvidia.com count on every GPU until they end, where that driver is not back; pods with "+
			"GPUs of another removed driver are not seen, so end them: %w", file.DamagedPath(), damage), file.SetAside()
	}
	if !found {
		return nil, nil, nil
	}
	on = map[otherdrivers.Device]string{}
	for _, d := range kept {
		on[otherdrivers.Device{Driver: d.Driver, Pool: d.Pool, Name: d.Name}] = d.UUID
	}
	return on, nil, nil
}

func (f keptFile) store(on map[otherdrivers.Device]string) error {
	kept := []keptDevice{}
	for d, uuid := range on {
		kept = append(kept, keptDevice{d.Driver, d.Pool, d.Name, uuid})
	}
	slices.SortFunc(kept, func(a, b keptDevice) int {
		return cmp.Or(cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Name, b.Name))
	})
	if err := statefile.File[[]keptDevice](f).Store(kept); err != nil {
		return fmt.Errorf("remember which GPUs other drivers have: %w", err)
	}
	return nil
}
