// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// namedMost is how many nodes a note names.
const namedMost = 5

func isSwitching(t resourceapi.DeviceTaint) bool { return t.Key == v1alpha1.TaintSwitching }

// noteSwitches says which nodes wait to change their mode, which the table that users
// know has no column for.
func (b *builder) noteSwitches() {
	wanted := map[string]string{}
	for _, object := range b.in.Nodes {
		wanted[object.Name] = object.Labels[ack.NodeLabelSchedule]
	}
	for _, name := range slices.Sorted(maps.Keys(b.nodes)) {
		if !b.nodes[name].Switching {
			continue
		}
		to := ""
		if wanted[name] != "" {
			to = fmt.Sprintf(" (label %s=%s)", ack.NodeLabelSchedule, wanted[name])
		}
		b.note("Node %s takes no new claims: it waits to change its mode%s. `kubectl describe node %s` says for which pods.",
			name, to, name)
	}
}

// noteOtherDrivers says which GPUs take no new claims because another DRA driver has them, too.
func (b *builder) noteOtherDrivers() {
	published := devices.Published(b.in.Slices)
	for _, name := range slices.Sorted(maps.Keys(published)) {
		if has := devices.OfOtherDrivers(published[name]); has != "" {
			b.note("On node %s GPUs take no new claims, since another DRA driver has them, too: %s. `kubectl describe node %s` "+
				"says what to do.", name, has, name)
		}
	}
}

// Silent lists, in order, the nodes on which the driver runs and that offer no GPUs.
func Silent(published []*resourceapi.ResourceSlice) []string {
	offers := map[string]bool{}
	for _, slice := range published {
		if name := ptr.Deref(slice.Spec.NodeName, ""); slice.Spec.Driver == v1alpha1.DriverName &&
			slice.Spec.Pool.Name == v1alpha1.PoolName(name) {
			offers[name] = offers[name] || len(slice.Spec.Devices) > 0
		}
	}
	var silent []string
	for _, name := range slices.Sorted(maps.Keys(offers)) {
		if !offers[name] {
			silent = append(silent, name)
		}
	}
	return silent
}

// Unread lists, in order, the nodes that publish nothing since their GPUs could not be read yet.
func Unread(published []*resourceapi.ResourceSlice, events []corev1.Event) []string {
	unread := map[string]bool{}
	for i := range events {
		if e := &events[i]; e.Type == corev1.EventTypeWarning && e.Reason == v1alpha1.ReasonDriverUnavailable {
			unread[e.InvolvedObject.Name] = true
		}
	}
	for _, slice := range published {
		delete(unread, ptr.Deref(slice.Spec.NodeName, ""))
	}
	return slices.Sorted(maps.Keys(unread))
}

// WithholdsAll reports whether a reason is one for which a node offers no GPUs at all. What is
// told beside it, maybe in the same second, follows from the fault, or is about single GPUs.
func WithholdsAll(reason string) bool {
	switch reason {
	case v1alpha1.ReasonDriverUnavailable, v1alpha1.ReasonFeatureDisabled, v1alpha1.ReasonLeftOut,
		v1alpha1.ReasonMPSSupervisorFailed, v1alpha1.ReasonModeNotServed, v1alpha1.ReasonPodsUnread,
		v1alpha1.ReasonPublishFailed:
		return true
	}
	return false
}

// explainsMore reports whether an Event rather than another says why its node offers no GPUs.
func explainsMore(event, other *corev1.Event) bool {
	if a, b := WithholdsAll(event.Reason), WithholdsAll(other.Reason); a != b {
		return a
	}
	return other.LastTimestamp.Before(&event.LastTimestamp)
}

// noteFaults says of nodes that offer no GPUs what their Events say, once for all nodes
// of which they say the same.
func (b *builder) noteFaults() {
	last := map[string]corev1.Event{}
	for _, event := range b.in.Events {
		name := event.InvolvedObject.Name
		before, told := last[name]
		if event.Type == corev1.EventTypeWarning && (!told || explainsMore(&event, &before)) {
			last[name] = event
		}
	}
	nodes := map[string][]string{}
	for _, name := range append(Silent(b.in.Slices), Unread(b.in.Slices, b.in.Events)...) {
		why := "see its Events with `kubectl describe node " + name + "`"
		if event, told := last[name]; told {
			why = event.Reason + ": " + event.Message
		}
		nodes[why] = append(nodes[why], name)
	}
	for _, why := range slices.SortedFunc(maps.Keys(nodes),
		func(x, y string) int { return cmp.Compare(nodes[x][0], nodes[y][0]) }) {
		names := nodes[why]
		offer := "offers"
		subject := "Node " + names[0]
		if len(names) > 1 {
			offer, subject = "offer", "Nodes "+text.List(names, namedMost)
		}
		b.note("%s %s no GPUs: %s", subject, offer, why)
	}
}
