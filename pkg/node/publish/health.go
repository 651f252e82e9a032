// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// DeviceHealth is a device of the node, and what is wrong with it; nothing if Message is
// empty.
type DeviceHealth struct{ Device, Message string }

// Health says how all devices are that are published, or that prepared claims were
// allocated, in the order of their names.
func (p *Publisher) Health(prepared []state.Record) []DeviceHealth {
	p.mu.Lock()
	in := p.given
	published := p.published
	p.mu.Unlock()
	if in.machine == nil {
		return nil
	}
	found := map[string]string{}
	for _, d := range published {
		found[d.Name] = in.deviceHealth(d.Name, d.Taints)
	}
	in.addGranted(found, prepared)
	out := make([]DeviceHealth, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		out = append(out, DeviceHealth{Device: name, Message: found[name]})
	}
	return out
}

// addGranted adds the devices that claims were allocated. Pods know their GPUs by the names of that time: where other
// GPUs have the names now, what is told of these is of the GPUs that the pods have.
func (in given) addGranted(found map[string]string, prepared []state.Record) {
	renamed, named := map[string]string{}, map[string]bool{}
	for _, r := range prepared {
		for _, result := range claim.Results(r.Grants) {
			device := result[0].Device
			_, known := found[device]
			switch {
			case result[0].GPU.MIG != nil && !result[0].Admin:
				found[device] = in.instanceHealth(device, result[0].GPU.UUID)
			case slices.ContainsFunc(result, in.isRenamed):
				renamed[device] = cmp.Or(renamed[device], in.grantedHealth(result))
			default:
				named[device] = true
				if !known {
					found[device] = in.deviceHealth(device, nil)
				}
			}
		}
	}
	for device, message := range renamed {
		if named[device] { // by claims that came later
			message = cmp.Or(message, found[device])
		}
		found[device] = message
	}
}

// deviceHealth says what is wrong with a device: with one of its GPUs, or with what keeps
// the GPU's users apart.
func (in given) deviceHealth(device string, taints []resourceapi.DeviceTaint) string {
	indices, m, err := devices.ParseDeviceName(device)
	switch {
	case err != nil:
		return ""
	case m == mode.MIG:
		return in.instanceHealth(device, "")
	}
	for _, index := range indices {
		if message := in.gpuHealth(index); message != "" {
			return message
		}
	}
	for _, t := range taints {
		if t.Key == v1alpha1.TaintNotIsolated && t.Value != besideValue {
			return "what keeps the users of the GPU apart does not work at the moment: see the Events of the node"
		}
	}
	return ""
}

func (in given) gpuHealth(index int) string {
	at := slices.IndexFunc(in.machine.GPUs, func(g gpu.GPU) bool { return g.Index == index })
	if at >= 0 {
		return in.unhealthy[in.machine.GPUs[at].UUID].Message
	}
	at = slices.IndexFunc(in.machine.Faults, func(f gpu.Fault) bool { return f.Index == index })
	if at >= 0 {
		return in.machine.Faults[at].Message
	}
	return gpuGone
}

const gpuGone = "the GPU is not there any more"
