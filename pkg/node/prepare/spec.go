// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metafile"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Usable reports, for each of the records, why a container that starts with what was prepared would lack something; nil
// where it would not. What many of them have is looked at once.
func (p *Preparer) Usable(records []state.Record) []error {
	inv, errs := p.inventory.Load(), make([]error, len(records))
	if inv != nil {
		inv = &Inventory{Machine: inv.Machine, Base: checkedOnce{inv.Base, map[string]error{}}}
	}
	for i, r := range records {
		if inv == nil {
			errs[i] = errNoInventory
			continue
		}
		w, err := p.preparationOf(inv, r)
		if err == nil {
			err = w.usable()
		}
		errs[i] = err
	}
	return errs
}

// checkedOnce remembers what Check said.
type checkedOnce struct {
	BaseEdits
	said map[string]error
}

func (c checkedOnce) Check(uuid string) error {
	err, known := c.said[uuid]
	if !known {
		err = c.BaseEdits.Check(uuid)
		c.said[uuid] = err
	}
	return err
}

// usable reports why a container that starts with the grants now would lack something.
func (w *preparation) usable() error {
	for _, g := range w.record.Grants {
		if gone := g.GPU.Gone(w.inventory.Machine); gone != "" {
			return fmt.Errorf("%s: delete the pod, so that it is placed again", gone)
		}
		if err := w.goneGPU(g.GPU); err != nil {
			return err
		}
		if g.GPU.Unmade() {
			continue // what it takes is there when it is
		}
		if err := w.inventory.Base.Check(g.GPU.UUID); err != nil {
			return fmt.Errorf("%s: %w", g.GPU, err)
		}
	}
	return w.isolated.Check()
}

// goneGPU reports a GPU that the node does not have any more.
func (w *preparation) goneGPU(granted claim.GPU) error {
	if !granted.Left(w.inventory.Machine) {
		return nil
	}
	return fmt.Errorf("%s (%s) is not there any more: delete the pod, so that it is placed again", granted, granted.UUID)
}

// setUp makes what the back ends need on the host. Before that it has the GPUs opened that
// the record's claim uses otherwise than by MPS, and that were MPS' alone until a moment ago.
// The record is entered, so that no claim comes to use them by MPS meanwhile: a GPU has
// claims of one mode.
func (p *Preparer) setUp(ctx context.Context, w *preparation) error {
	if err := p.options.MPS.GiveBack(ctx, w.isolated.BesideMPS()...); err != nil {
		return withReason(ReasonNotStartable, err)
	}
	if err := w.isolated.SetUp(ctx); err != nil {
		return err
	}
	return p.setTimeSlices(ctx, w.record)
}

// written reports whether the record's CDI spec is there, and all that it refers to.
func (p *Preparer) written(r state.Record) (bool, error) {
	there, err := p.options.Specs.Exists(r.CDISpec)
	if err != nil || !there {
		return false, err
	}
	return p.options.Metadata.Exists(metadataOf(r))
}

func metadataOf(r state.Record) metafile.Claim {
	return metafile.Claim{Namespace: r.Namespace, Name: r.Name, UID: r.UID, PodClaimName: r.PodClaimName, Grants: r.Grants}
}

// writeSpec writes the claim's CDI spec: a device per allocation result, which brings
// its GPUs, the environment of the result's container group and what its isolation needs.
// The first of each request brings the file that tells containers what they have by it.
func (p *Preparer) writeSpec(w *preparation) error {
	r, base := w.record, w.inventory.Base
	files, err := p.options.Metadata.Write(metadataOf(r))
	if err != nil {
		return err
	}
	var cdiDevices []specs.Device
	for _, container := range w.isolated {
		env, enforcement, err := container.Edits()
		if err != nil {
			return err
		}
		for _, result := range container.Results {
			// Slices of its own: those of the GPUs are shared by all claims.
			edits := &upstream.ContainerEdits{ContainerEdits: &specs.ContainerEdits{}}
			for _, g := range result {
				of, err := base.GPU(g.GPU.UUID)
				if err != nil {
					return cmp.Or(w.goneGPU(g.GPU), err)
				}
				edits.Append(&upstream.ContainerEdits{ContainerEdits: &of})
			}
			edits.Env = append(edits.Env, env...)
			if file := files[metafile.Request(result[0])]; file != nil {
				edits.Mounts = append(edits.Mounts, file)
				delete(files, metafile.Request(result[0]))
			}
			edits.Append(&upstream.ContainerEdits{ContainerEdits: enforcement})
			device := specs.Device{Name: deviceName(r.UID, result), ContainerEdits: *edits.ContainerEdits}
			if i := result[0].GPU.MIG; i != nil && i.Made {
				// Where the record is lost, it is to be known that nobody else has made it.
				device.Annotations = map[string]string{cdi.AnnotationMade: result[0].GPU.UUID}
			}
			cdiDevices = append(cdiDevices, device)
		}
	}
	s, err := cdi.Spec(base.Common(), cdiDevices)
	if err != nil {
		return err
	}
	return p.options.Specs.Write(r.CDISpec, s)
}

// deviceName is the name of the CDI device that stands for an allocation result.
func deviceName(uid types.UID, result []claim.Grant) string {
	g := result[0]
	return cdi.DeviceName(uid, g.Request, g.Device, g.ShareID)
}

// deviceNames are the names of the record's CDI devices, in the spec's order.
func deviceNames(r state.Record) []string {
	var names []string
	for _, group := range claim.ContainerGroups(r.Grants) {
		for _, result := range claim.Results(group) {
			names = append(names, deviceName(r.UID, result))
		}
	}
	return names
}

// devices are what the kubelet is told of a prepared claim, in the allocation's order.
func devices(r state.Record) []kubeletplugin.Device {
	results := claim.Results(r.Grants)
	out := make([]kubeletplugin.Device, 0, len(results))
	for _, result := range results {
		g := result[0]
		d := kubeletplugin.Device{
			Requests:     []string{g.Request},
			PoolName:     g.Pool,
			DeviceName:   g.Device,
			CDIDeviceIDs: []string{cdi.QualifiedName(deviceName(r.UID, result))},
		}
		if g.ShareID != "" {
			shareID := g.ShareID
			d.ShareID = &shareID
		}
		out = append(out, d)
	}
	return out
}

// Startable reports why no container could start with any of the node's GPUs or instances now, as
// where the device nodes are looked for in the wrong place; nil if one could, or if
// there are no GPUs.
func (p *Preparer) Startable() error {
	inv := p.inventory.Load()
	if inv == nil {
		return nil
	}
	var first error
	for _, uuid := range usableUUIDs(inv.Machine) {
		err := inv.Base.Check(uuid)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// usableUUIDs are those of the GPUs and instances that a container can be given.
func usableUUIDs(m *gpu.Machine) []string {
	var uuids []string
	for _, g := range m.GPUs {
		uuids = append(uuids, g.UUID)
	}
	for _, p := range m.Partitioned {
		for _, i := range p.Instances {
			if i.LeftOut == "" {
				uuids = append(uuids, i.UUID)
			}
		}
	}
	return uuids
}
