// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// beginning is what a pass does before it looks how the modes are served that the node asks for: daemons are started,
// and what must not be forgotten is kept, also where nothing can be planned.
type beginning struct {
	memory
	// asked is what the node asks for.
	asked desired
	// checkpoint has whether a device plugin is here.
	checkpoint state.Node
	// rescan says that the GPUs are to be read again.
	rescan bool
	// misread is why the node's annotation is not understood.
	misread error
}

// begin decides what the node asks for, and what that takes. It is a function of the snapshot alone.
func (s snapshot) begin(backends isolation.Backends) beginning {
	b := beginning{memory: s.memory, asked: s.node.asks(s.checkpoint.Asked(), backends)}
	if s.unlisted == nil {
		b.listed = s.records
	}
	if !s.annotation.read || s.node.waiting != s.annotation.text {
		b.annotation, b.misread = s.annotation.next(s.node.waiting, s.now)
	}
	if s.layout.Limits != nil {
		b.lifting = s.lifting.next(b.annotation.waits(s.now), s.records, s.now)
	}
	b.checkpoint, b.devicePluginGoneSince = s.afterDevicePlugin(&b.asked)
	if s.unusable != nil && b.asked.notServed == nil {
		b.asked.offerNothing(s.unusable)
		b.asked.again = true
	}
	if s.hasMIG() || len(s.made) > 0 {
		var unseen bool
		b.made, unseen, b.rescan = s.madeNow()
		b.asked.again = b.asked.again || unseen
	}
	return b
}

// enter does what a pass begins with, and enters it into the snapshot. It is idempotent.
func (p *Publisher) enter(ctx context.Context, s *snapshot, b beginning) error {
	if b.misread != nil {
		klog.FromContext(ctx).Error(b.misread, "The node's annotation is not understood", "annotation",
			v1alpha1.AnnotationWaiting)
	}
	if b.rescan {
		signal.Send(p.Rescan)
	}
	s.memory, s.asked = b.memory, b.asked
	if b.checkpoint.DevicePlugin != s.checkpoint.DevicePlugin {
		if err := p.State.PutNode(b.checkpoint); err != nil {
			return err
		}
		s.checkpoint = b.checkpoint
		p.Pods.SetLeft(b.checkpoint.DevicePluginLeft)
	}
	var err error
	s.daemonsStarted, err = p.demand.Want(slices.ContainsFunc(b.asked.served, servedMode.byMPS),
		slices.ContainsFunc(b.asked.served, servedMode.byNodeDaemon))
	return err
}

// asks is what the node asks for, given what it asked for last. A node on
// which a device plugin serves anything gets nothing, in any mode: both sides hand
// out the same GPUs, and neither knows what the other is about to give away.
func (f *nodeFacts) asks(last mode.Asked, backends isolation.Backends) desired {
	var w desired
	ignore := func(err error) {
		if err != nil {
			w.ignored = append(w.ignored, err)
		}
	}
	var err error
	w.placement, err = mode.PlacementFromLabels(f.labels)
	ignore(err)
	_, err = mode.TimeSliceFromLabels(f.labels)
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
