// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Checkpoint is what has to outlive the process, and the node's reboot, for the
// node's mode to stay what it is, and for its GPUs to be offered by one side only.
type Checkpoint struct {
	// Wanted is the mode that the labels asked for last: it stays when they are
	// taken off.
	Wanted mode.Mode `json:"wanted,omitempty"`
	// Overruled are older labels that do not count (mode.Asked).
	Overruled map[string]string `json:"overruled,omitempty"`
	// Published is the mode that devices were last published in. Claims may be
	// allocated from them until the mode has been left properly.
	Published mode.Mode `json:"published,omitempty"`
	// Isolation is by what the GPUs' users were kept apart in them (mode.Offer).
	// Earlier versions did not write it.
	Isolation map[mode.Mode]string `json:"isolation,omitempty"`
	// Closed says that the devices have been closed to new claims for mode.Settle, since
	// they are about to be published otherwise.
	Closed bool `json:"closed,omitempty"`
	// DevicePlugin says that a device plugin served the GPUs, and has not been gone
	// for long enough since.
	DevicePlugin bool `json:"devicePlugin,omitempty"`
	// DevicePluginLeft is when none had served them for long enough: pods that were
	// taken by the kubelet later have nothing of one. It is zero while DevicePlugin holds. Earlier
	// versions did not write it: what they knew is of the moment in which it is missed.
	DevicePluginLeft time.Time `json:"devicePluginLeft,omitzero"`
}

// asked is what the labels came to last.
func (c Checkpoint) asked() mode.Asked { return mode.Asked{Mode: c.Wanted, Overruled: c.Overruled} }

// asks remembers what the labels come to.
func (c *Checkpoint) asks(a mode.Asked) { c.Wanted, c.Overruled = a.Mode, a.Overruled }

// offer is what devices were last published as.
func (c Checkpoint) offer() mode.Offer { return mode.Offer{Mode: c.Published, Isolation: c.Isolation} }

// offers remembers what devices are published as.
func (c *Checkpoint) offers(o mode.Offer) { c.Published, c.Isolation = o.Mode, o.Isolation }

// CheckpointFile is where a Checkpoint is kept, as JSON.
type CheckpointFile string

// Load returns what was kept; nothing, if there is none or it cannot be read:
// then the labels, and the claims that are allocated, tell. What cannot be read may
// have said that a device plugin was here.
func (f CheckpointFile) Load(ctx context.Context) (Checkpoint, bool) {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return Checkpoint{}, false
	}
	var c Checkpoint
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "The node's last mode cannot be read, going by its labels and claims", "file",
			string(f))
		return Checkpoint{DevicePlugin: true}, false
	}
	return c, true
}

func (f CheckpointFile) store(c Checkpoint) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(string(f), data, 0o600, true); err != nil {
		return fmt.Errorf("remember the node's mode: %w", err)
	}
	return nil
}

// isolationOf is by what the users of GPUs are kept apart in the modes: as claims
// were prepared, failing that as the stored devices say, failing that as they would be now.
func isolationOf(modes []mode.Mode, prepared []state.Record, stored []resourceapi.ResourceSlice,
	backends isolation.Backends) (map[mode.Mode]string, error) {
	told := map[mode.Mode]string{}
	tell := func(m mode.Mode, name string) {
		if told[m] == "" {
			told[m] = name
		}
	}
	for _, r := range prepared {
		for _, g := range r.Grants {
			tell(g.Mode, g.Isolation)
		}
	}
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			tell(mode.Mode(ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, "")),
				ptr.Deref(d.Attributes[v1alpha1.AttrIsolation].StringValue, ""))
		}
	}
	out := map[mode.Mode]string{}
	for _, m := range modes {
		if out[m] = told[m]; out[m] != "" {
			continue
		}
		backend, err := backends.For(m)
		if err != nil {
			return nil, err
		}
		out[m] = backend.Name()
	}
	return out, nil
}

// Observed tells what the node's devices are published as, by whichever process.
type Observed struct {
	CheckpointFile
	Client   kubernetes.Interface
	NodeName string
	// Backends finds the back end of each mode.
	Backends isolation.Backends
}

// Published is what the node's devices were last published as.
func (o Observed) Published(ctx context.Context) prepare.Published {
	c, _ := o.Load(ctx)
	return prepare.Published{Offer: c.offer(), Draining: c.Closed}
}

// PublishedIsolation names the back end that a GPU which was published in the mode is
// isolated by: as the checkpoint says, failing that as the node's ResourceSlices do, failing
// that as it would be now.
func (o Observed) PublishedIsolation(ctx context.Context, m mode.Mode) (string, error) {
	if name := o.Published(ctx).Isolation[m]; name != "" {
		return name, nil
	}
	stored, err := cluster.StoredSlices(ctx, o.Client, o.NodeName)
	if err != nil {
		return "", fmt.Errorf("look up how the published GPUs are isolated: %w", err)
	}
	names, err := isolationOf([]mode.Mode{m}, nil, stored, o.Backends)
	return names[m], err
}
