// SPDX-License-Identifier: Apache-2.0

package cut

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

// record says on disk what is to be put back, before anything is changed: also `./run down`, after a kill, finds it.
// The GPU had no instances before.
type record struct {
	// Library is the driver's NVML.
	Library string `json:"library"`
	UUID    string `json:"uuid"`
	// On is the MIG mode that the GPU was in.
	On bool `json:"migMode"`
}

func (r record) write(path string) error {
	content, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down the MIG mode of GPU %s, which is not changed therefore: %w", r.UUID, err)
	}
	return nil
}

// readRecord says also whether there is one.
func readRecord(path string) (r record, there bool, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return record{}, false, fmt.Errorf("read which GPU's MIG mode is to be put back: %w", err)
	}
	return r, true, nil
}

// switchPatience is for programs that have just ended, and to which the driver still counts the GPU.
const switchPatience = 15 * time.Second

// PutBack destroys all instances of the GPU that SwitchOn wrote a file about, switches its MIG mode to what it was,
// and removes the file. Without a file nothing was changed.
func PutBack(ctx context.Context, file string) error {
	r, there, err := readRecord(file)
	if err != nil || !there {
		return err
	}
	if err := r.putBack(ctx); err != nil {
		return fmt.Errorf("MIG mode of GPU %s was %s, and could not be put back: %w: do so by nvidia-smi mig -i %s -dci, "+
			"nvidia-smi mig -i %s -dgi and nvidia-smi -i %s -mig %d", r.UUID, onOff(r.On), err, r.UUID, r.UUID, r.UUID,
			map[bool]int{true: 1}[r.On])
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("MIG mode of GPU %s was put back, and that is not written down: %w", r.UUID, err)
	}
	return nil
}

func (r record) putBack(ctx context.Context) error {
	lib, err := gpunvml.Open(ctx, gpunvml.OpenOptions{LibraryPath: r.Library})
	if err != nil {
		return err
	}
	g := New(lib, r.Library, gpu.GPU{UUID: r.UUID}, "/")
	return kube.Until(ctx, switchPatience, "the GPU to be as it was", func(ctx context.Context) error {
		if err := g.clear(ctx); err != nil {
			return err
		}
		return g.switchBack(ctx, r.On)
	})
}

// switchBack is also for a mode that only waited for a reset.
func (g *GPU) switchBack(ctx context.Context, on bool) error {
	device, err := g.device(ctx)
	if err != nil {
		return err
	}
	if m, err := g.mode(ctx, device); err != nil || m == (mode{on, on}) {
		return err
	}
	activation, _, err := g.setMode(ctx, device, on)
	if err != nil {
		return err
	}
	m, err := g.mode(ctx, device)
	if err == nil && m != (mode{on, on}) {
		err = fmt.Errorf("it is %s, activation status %w", m, activation)
	}
	return err
}
