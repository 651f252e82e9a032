package plugin

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/amounts"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/taken"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/prepare"
	devslices "github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// Taint keys that the driver puts on its devices.
const (
	TaintSwitching   = devslices.TaintSwitching
	TaintNotIsolated = devslices.TaintNotIsolated
	TaintHeld        = devslices.TaintHeld
)

// nodeFacts is what the publisher goes by of a Node object.
type nodeFacts struct {
	labels map[string]string
	// devicePlugin lists the resources of GPU device plugins that the node
	// offers, in order.
	devicePlugin []string
	// missingLabel is the label that the node lacks to be offered at all.
	missingLabel string
}

func factsOf(node *corev1.Node, requiredLabel string) *nodeFacts {
	f := &nodeFacts{labels: map[string]string{}}
	if _, ok := node.Labels[requiredLabel]; !ok {
		f.missingLabel = requiredLabel
	}
	for _, key := range mode.Labels() {
		if value, ok := node.Labels[key]; ok {
			f.labels[key] = value
		}
	}
	// Nobody but a kubelet writes these: where a DeviceClass stands for nvidia.com/gpu
	// it does not come into the status. Capacity does not count, which the kubelet
	// keeps for minutes after the device plugin is gone.
	for _, name := range taken.NativeResources() {
		if quantity := node.Status.Allocatable[name]; !quantity.IsZero() {
			f.devicePlugin = append(f.devicePlugin, string(name))
		}
	}
	// gpu-compat-controller shows some of these for tools to read.
	for _, name := range amounts.ReadOwners(node.ManagedFields).Offered(node.Status.Allocatable) {
		f.devicePlugin = append(f.devicePlugin, string(name))
	}
	return f
}

// wish is what a node asks for.
type wish struct {
	// mode is empty where that is something that cannot be served.
	mode      mode.Mode
	placement mode.Placement
	// servings are the modes that each card is offered in.
	servings []serving
	// refused says why mode is empty, ignored which labels were not understood
	// and could be done without.
	refused error
	ignored []error
	// again says that the reason for the refusal can go away unnoticed.
	again bool
}

// wish is what the node asks for, given the mode it asked for last. A node on
// which a device plugin serves anything gets nothing, in any mode: both sides hand
// out the same cards, and neither knows what the other is about to give away.
func (f *nodeFacts) wish(last mode.Mode, backends prepare.Isolation) wish {
	var w wish
	ignore := func(err error) {
		if err != nil {
			w.ignored = append(w.ignored, err)
		}
	}
	var err error
	w.placement, err = mode.PlacementFromLabels(f.labels)
	ignore(err)
	if len(f.devicePlugin) > 0 {
		w.refused = fmt.Errorf("a device plugin serves %s here and would give the same GPUs to other pods: remove it from this node", strings.Join(f.devicePlugin, ", "))
		return w
	}
	if f.missingLabel != "" {
		w.refused = fmt.Errorf("it lacks the label %s, which this installation requires (REQUIRED_NODE_LABEL) while nodes move from device plugins to this driver: see docs/migrate.md", f.missingLabel)
		return w
	}
	m, err := mode.FromLabels(f.labels, last)
	if err != nil && m == "" {
		w.refused = err
		return w
	}
	if err != nil {
		ignore(fmt.Errorf("%w: the GPUs stay in mode %s", err, m))
	}
	w.servings, w.refused = servingsOf(m, backends)
	if w.refused != nil {
		return w
	}
	w.mode = m
	ignore(setSlots(w.servings, f.labels))
	return w
}

// refuse makes it a wish for nothing, for the reason given.
func (w *wish) refuse(reason error) {
	w.mode, w.servings, w.refused = "", nil, reason
}

// occupants are the claims that hold devices of the pool, by what is to be
// told about them: the pods that use a claim, or the claim itself if none does.
// Claims with administrator access do not count: they hold nothing, and a
// monitor on every node would keep all of them from ever changing their mode.
type occupants struct {
	names []string
	mode  mode.Mode
}

// hold notes that somebody holds a device of a mode. Devices of several modes
// are published side by side on dynamic nodes only.
func (o *occupants) hold(m mode.Mode, names ...string) {
	if o.mode != "" && o.mode != m {
		m = mode.Dynamic
	}
	o.mode = m
	o.names = append(o.names, names...)
}

// occupantsOf lists who holds devices of the pool, and the mode that the pool
// must have been published in. A device whose name is not one of ours cannot
// have been published by any version of this driver and is left out.
func occupantsOf(claims []resourceapi.ResourceClaim, pool string) occupants {
	var out occupants
	for i := range claims {
		c := &claims[i]
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver != devslices.DriverName || r.Pool != pool || ptr.Deref(r.AdminAccess, false) {
				continue
			}
			_, m, err := devslices.ParseDeviceName(r.Device)
			if err != nil {
				continue
			}
			out.hold(m, usersOf(c)...)
		}
	}
	slices.Sort(out.names)
	out.names = slices.Compact(out.names)
	return out
}

// firstHeld is the index of the first grant that holds something, -1 if none
// does.
func firstHeld(grants []claim.Grant) int {
	return slices.IndexFunc(grants, func(g claim.Grant) bool { return !g.Admin })
}

// allClosed says whether no stored device is open to new claims in the midst of
// a change of the mode.
func allClosed(stored []resourceapi.ResourceSlice) bool {
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == TaintSwitching }) {
				return false
			}
		}
	}
	return true
}

func usersOf(c *resourceapi.ResourceClaim) []string {
	var pods []string
	for _, pod := range podsOf(c) {
		pods = append(pods, "pod "+pod.Namespace+"/"+pod.Name)
	}
	if len(pods) == 0 {
		return []string{"claim " + c.Namespace + "/" + c.Name}
	}
	return pods
}

// listed names at most some.
func listed(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func switchingTaints(closed bool) []resourceapi.DeviceTaint {
	if !closed {
		return nil
	}
	return []resourceapi.DeviceTaint{{Key: TaintSwitching, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
}

// cardTaints are the taints of the cards on which shares could not be enforced at the
// moment, and of those that pods without a claim leave nothing of. They are by UUID.
func cardTaints(unhealthy map[string]string, held []string) map[string][]resourceapi.DeviceTaint {
	taints := map[string][]resourceapi.DeviceTaint{}
	for uuid := range unhealthy {
		taints[uuid] = []resourceapi.DeviceTaint{{Key: TaintNotIsolated, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	for _, uuid := range held {
		taints[uuid] = append(taints[uuid], resourceapi.DeviceTaint{Key: TaintHeld, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return taints
}
