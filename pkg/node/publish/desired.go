// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
)

// nodeFacts is what the publisher goes by of a Node object.
type nodeFacts struct {
	labels map[string]string
	// devicePlugin lists the resources of GPU device plugins that the node
	// offers, in order.
	devicePlugin []string
	// withDevices lists the resources of which one has devices, healthy or not, in order. It is
	// empty where a label is required: it tells whether the device plugin is gone.
	withDevices []string
	// hadDevicePlugin says that one has offered some, now or before.
	hadDevicePlugin bool
	// waiting says who waits for what is held back to spread shares, a placement.Waiting.
	waiting string
	// missingLabel is the label that the node lacks to be offered at all.
	missingLabel string
	// hasGPUs says that a label tells so: the mode, or the model that outlasts what was published.
	hasGPUs bool
}

func factsOf(node *corev1.Node, requiredLabel string) *nodeFacts {
	f := &nodeFacts{labels: map[string]string{}, waiting: node.Annotations[v1alpha1.AnnotationWaiting]}
	if _, ok := node.Labels[requiredLabel]; !ok {
		f.missingLabel = requiredLabel
	}
	f.hasGPUs = node.Labels[ack.NodeLabelSchedule] != "" || node.Labels[ack.NodeLabelModel] != ""
	for _, key := range append(mode.Labels(), v1alpha1.LabelMPSDaemon, v1alpha1.LabelGPUDriver) {
		if value, ok := node.Labels[key]; ok {
			f.labels[key] = value
		}
	}
	// Nobody but a kubelet writes these: where a DeviceClass stands for nvidia.com/gpu
	// it does not come into the status. Capacity does not count by itself: the kubelet
	// keeps it for minutes after the device plugin is gone.
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		if quantity := node.Status.Allocatable[name]; deviceplugin.Native(name) && !quantity.IsZero() {
			f.devicePlugin = append(f.devicePlugin, string(name))
		}
	}
	// gpu-compat-controller shows some of these for tools to read.
	owners := legacy.ReadOwners(node.ManagedFields)
	for _, name := range owners.Offered(node.Status.Allocatable) {
		f.devicePlugin = append(f.devicePlugin, string(name))
	}
	// The kubelet leaves an amount of 0 in the capacity of what device plugins offered.
	ours, _ := owners.OursAlone()
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		if !deviceplugin.OfPlugin(name) || slices.Contains(ours, name) {
			continue
		}
		f.hadDevicePlugin = true
		if quantity := node.Status.Capacity[name]; requiredLabel == "" && !quantity.IsZero() {
			f.withDevices = append(f.withDevices, string(name))
		}
	}
	return f
}

// desired is what a node asks for.
type desired struct {
	// mode is empty where that is something that cannot be served.
	mode mode.Mode
	// asked is what the labels came to, if there is a mode.
	asked     mode.Asked
	placement mode.Placement
	// servings are the modes that each GPU is offered in.
	served []servedMode
	// notServed says why mode is empty, ignored which labels were not understood
	// and could be done without.
	notServed error
	ignored   []error
	// again says that the reason for the refusal can go away unnoticed.
	again bool
}

// desired is what the node asks for, given what it asked for last. A node on
// which a device plugin serves anything gets nothing, in any mode: both sides hand
// out the same GPUs, and neither knows what the other is about to give away.
func (f *nodeFacts) desired(last mode.Asked, backends isolation.Backends) desired {
	var w desired
	ignore := func(err error) {
		if err != nil {
			w.ignored = append(w.ignored, err)
		}
	}
	var err error
	w.placement, err = mode.PlacementFromLabels(f.labels)
	ignore(err)
	if len(f.devicePlugin) > 0 {
		w.notServed = fmt.Errorf("a device plugin serves %s here and would give the same GPUs to other pods: remove it "+
			"from this node", strings.Join(f.devicePlugin, ", "))
		return w
	}
	if f.missingLabel != "" {
		w.notServed = fmt.Errorf("it lacks the label %s, which this installation requires (REQUIRED_NODE_LABEL) while "+
			"nodes move from device plugins to this driver: see docs/migrate.md", f.missingLabel)
		return w
	}
	if driver := f.labels[v1alpha1.LabelGPUDriver]; driver != "" && driver != v1alpha1.DriverName {
		w.notServed = fmt.Errorf("its label %s=%s gives them to that driver", v1alpha1.LabelGPUDriver, driver)
		return w
	}
	w.asked, err = mode.FromLabels(f.labels, last)
	m := w.asked.Mode
	if err != nil && m == "" {
		w.notServed = err
		return w
	}
	if err != nil {
		ignore(fmt.Errorf("%w: the GPUs stay in mode %s", err, m))
	}
	w.served, w.notServed = servedModes(mode.Offer{Mode: m}, backends)
	if w.notServed != nil {
		return w
	}
	w.mode = m
	if label := f.labels[v1alpha1.LabelMPSDaemon]; label != "" {
		ignore(useNodeDaemon(w.served, m, label))
	}
	if _, set := f.labels[ack.NodeLabelMaxPod]; set {
		ignore(setSlots(w.served, f.labels))
	}
	return w
}

// offer is what the devices are to be published as.
func (w *desired) offer() mode.Offer {
	if w.mode == "" {
		return mode.Offer{}
	}
	o := mode.Offer{Mode: w.mode, Isolation: map[mode.Mode]string{}}
	for _, s := range w.served {
		o.Isolation[s.mode] = s.backend.Name()
	}
	return o
}

// offerNothing makes it that nothing is offered, for the reason given.
func (w *desired) offerNothing(reason error) {
	w.mode, w.served, w.notServed = "", nil, reason
}

// allClosed reports whether no stored device is open to new claims in the midst of
// a change of the mode.
func allClosed(stored []resourceapi.ResourceSlice) bool {
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			if _, m, err := devices.ParseDeviceName(d.Name); err == nil && !m.OfNode() {
				continue // in the way of no mode
			}
			if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == v1alpha1.TaintSwitching }) {
				return false
			}
		}
	}
	return true
}

func switchingTaints(closed bool) []resourceapi.DeviceTaint {
	if !closed {
		return nil
	}
	return []resourceapi.DeviceTaint{{Key: v1alpha1.TaintSwitching, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
}

// unhealthyTaints are the taints of GPUs that are unhealthy, by UUID.
func unhealthyTaints(
	unhealthy map[string]health.Unhealthy, effect resourceapi.DeviceTaintEffect,
) map[string][]resourceapi.DeviceTaint {
	taints := map[string][]resourceapi.DeviceTaint{}
	for uuid, u := range unhealthy {
		taints[uuid] = []resourceapi.DeviceTaint{{Key: v1alpha1.TaintUnhealthy, Value: u.Reason,
			Effect: cmp.Or(effect, resourceapi.DeviceTaintEffectNoSchedule)}}
	}
	return taints
}

// besideValue is the value of the taint TaintNotIsolated on GPUs that take no claims because others hold some. The
// users that they have are kept apart.
const besideValue = "others-hold-gpus"

// gpuTaints adds to the taints by UUID those of the GPUs on which shares could not be
// enforced at the moment, and of those that pods without a claim, or other drivers, leave
// nothing of.
func (s servedMode) gpuTaints(
	m *gpu.Machine, common map[string][]resourceapi.DeviceTaint, full []string, t held.Reserved,
) map[string][]resourceapi.DeviceTaint {
	taints := map[string][]resourceapi.DeviceTaint{}
	for uuid, t := range common {
		taints[uuid] = slices.Clone(t)
	}
	for _, g := range m.GPUs {
		taint := resourceapi.DeviceTaint{Key: v1alpha1.TaintNotIsolated, Effect: resourceapi.DeviceTaintEffectNoSchedule}
		switch {
		case s.notIsolated[g.UUID] != "":
		case s.beside != "":
			taint.Value = besideValue
		default:
			continue
		}
		taints[g.UUID] = append(taints[g.UUID], taint)
	}
	for _, uuid := range full {
		taint := resourceapi.DeviceTaint{Key: v1alpha1.TaintHeld, Effect: resourceapi.DeviceTaintEffectNoSchedule}
		if driver := t.GPU(uuid).Driver; driver != "" {
			taint.Key, taint.Value = v1alpha1.TaintOtherDriver, driver
		}
		taints[uuid] = append(taints[uuid], taint)
	}
	return taints
}
