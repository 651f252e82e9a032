package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// memory is what has to outlive the process, and the node's reboot, for the
// node's mode to stay what it is, and for its cards to be offered by one side only.
type memory struct {
	// Wanted is the mode that the labels asked for last: it stays when they are
	// taken off.
	Wanted mode.Mode `json:"wanted,omitempty"`
	// Published is the mode that devices were last published in. Claims may be
	// allocated from them until the mode has been left properly.
	Published mode.Mode `json:"published,omitempty"`
	// DevicePlugin says that a device plugin served the cards, and has not been gone
	// for long enough since.
	DevicePlugin bool `json:"devicePlugin,omitempty"`
}

// memoryFile keeps a memory.
type memoryFile string

// load returns what was kept; nothing, if there is none or it cannot be read:
// then the labels, and the claims that are allocated, tell. What cannot be read may
// have said that a device plugin was here.
func (f memoryFile) load(ctx context.Context) (memory, bool) {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return memory{}, false
	}
	var m memory
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The node's last mode cannot be read, going by its labels and claims", "file", string(f))
		return memory{DevicePlugin: true}, false
	}
	return m, true
}

func (f memoryFile) store(m memory) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(string(f), data, 0o600, true); err != nil {
		return fmt.Errorf("remember the node's mode: %w", err)
	}
	return nil
}
