package plugin

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	devslices "github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// Taint keys that the driver puts on its devices.
const (
	// TaintSwitching keeps new claims off while a node waits to change its mode.
	TaintSwitching = devslices.DriverName + "/mode-switch"
)

// wish is what a node asks for.
type wish struct {
	// mode is empty where that is something that is not served.
	mode  mode.Mode
	slots int64
	// refused says why mode is empty.
	refused error
}

// nodeFacts is what the publisher goes by of a Node object.
type nodeFacts struct {
	labels map[string]string
	// devicePlugin lists the resources of GPU device plugins that the node
	// offers, in order.
	devicePlugin []string
}

func factsOf(node *corev1.Node) *nodeFacts {
	f := &nodeFacts{labels: map[string]string{}}
	for _, key := range []string{mode.ScheduleLabel, mode.MaxPodLabel} {
		if value, ok := node.Labels[key]; ok {
			f.labels[key] = value
		}
	}
	for _, name := range []corev1.ResourceName{"nvidia.com/gpu", "aliyun.com/gpu-mem", "aliyun.com/gpu"} {
		if quantity := node.Status.Allocatable[name]; !quantity.IsZero() {
			f.devicePlugin = append(f.devicePlugin, string(name))
		}
	}
	return f
}

// wish is what the node asks for, and, apart from that, what is wrong with a
// label that could be done without. A node on which a device plugin serves the
// same cards gets nothing: neither side knows what the other has given away.
func (f *nodeFacts) wish() (w wish, invalid error) {
	w.slots, invalid = mode.SlotsFromLabels(f.labels)
	if len(f.devicePlugin) > 0 {
		w.refused = fmt.Errorf("a device plugin serves %s here and would give the same GPUs to other pods: remove it from this node", strings.Join(f.devicePlugin, ", "))
		return w, invalid
	}
	m, err := mode.FromLabels(f.labels)
	if err != nil {
		w.refused = err
		return w, invalid
	}
	if _, err := isolation.For(m); err != nil {
		w.refused = fmt.Errorf("node label %s=%s: %w", mode.ScheduleLabel, f.labels[mode.ScheduleLabel], err)
		return w, invalid
	}
	w.mode = m
	return w, invalid
}

// holder is an allocated claim and the mode of the device it holds.
type holder struct {
	claim string // namespace/name
	mode  mode.Mode
}

// shape is what is published.
type shape struct {
	// mode is empty for a pool without devices.
	mode mode.Mode
	// switching says that the devices are tainted because the node waits to
	// change to another mode, and waitingFor names the claims it waits for.
	switching  bool
	waitingFor []string
}

// decide keeps design rule 5: a published shape changes only when nothing is
// allocated from it. The scheduler does not count a claim on a shared device
// as a use of the whole card or the reverse, so that with both shapes in
// sequence one card would be promised twice. The mode of an allocated device
// is known from its name; as long as there is one of another mode than the one
// wished for, that mode stays published, tainted.
func decide(w wish, holders []holder) shape {
	var old mode.Mode
	var waitingFor []string
	for _, h := range holders {
		if h.mode == w.mode || old != "" && h.mode != old {
			continue
		}
		old = h.mode
		if !slices.Contains(waitingFor, h.claim) {
			waitingFor = append(waitingFor, h.claim)
		}
	}
	if old == "" {
		return shape{mode: w.mode}
	}
	slices.Sort(waitingFor)
	return shape{mode: old, switching: true, waitingFor: waitingFor}
}

// taints are the taints that the shape puts on its devices.
func (s shape) taints() []resourceapi.DeviceTaint {
	if !s.switching {
		return nil
	}
	return []resourceapi.DeviceTaint{{Key: TaintSwitching, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
}

// holdersOf lists the claims that hold devices of the pool. A device whose
// name is not one of ours cannot have been published by any version of this
// driver and is left out.
func holdersOf(claims []resourceapi.ResourceClaim, pool string) []holder {
	var out []holder
	for i := range claims {
		c := &claims[i]
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver != devslices.DriverName || r.Pool != pool {
				continue
			}
			if _, m, err := devslices.ParseDeviceName(r.Device); err == nil {
				out = append(out, holder{claim: c.Namespace + "/" + c.Name, mode: m})
			}
		}
	}
	return out
}

func (s shape) String() string {
	switch {
	case s.mode == "":
		return "no devices"
	case s.switching:
		return fmt.Sprintf("mode %s, closed to new claims", s.mode)
	default:
		return fmt.Sprintf("mode %s", s.mode)
	}
}
