// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"strings"
	"time"
)

// hasDevicePlugin reports whether a device plugin serves the node's GPUs, or counts as one that does.
func (p *Publisher) hasDevicePlugin(node *nodeFacts) bool {
	return len(node.devicePlugin) > 0 || p.checkpoint.DevicePlugin
}

// afterDevicePlugin remembers whether a device plugin is here, and offers nothing while one that
// was has been gone for less than devicePluginGrace. One without healthy devices is here: they may recover.
func (p *Publisher) afterDevicePlugin(s snapshot, w *desired) error {
	there := len(s.node.devicePlugin) > 0
	unhealthy := !there && len(s.node.withDevices) > 0 && p.checkpoint.DevicePlugin
	counts, goneSince := devicePluginCounts(p.checkpoint.DevicePlugin, there || unhealthy, p.devicePluginGoneSince, s.now)
	p.devicePluginGoneSince = goneSince
	switch {
	case unhealthy:
		if w.notServed == nil {
			w.offerNothing(fmt.Errorf("a device plugin has devices of %s here, all unhealthy, or was removed: the kubelet "+
				"forgets one that was removed after five minutes, or when it is restarted",
				strings.Join(s.node.withDevices, ", ")))
		}
	case counts && !there:
		if w.notServed == nil {
			w.offerNothing(fmt.Errorf("a device plugin served the same GPUs here until a moment ago: if it does not come "+
				"back, they are offered in %s", devicePluginGrace))
		}
		w.again = true
	}
	return p.saveDevicePlugin(counts, s.node)
}

// devicePluginCounts reports whether a device plugin counts as one that serves the node's GPUs, and
// since when it has been gone that does so still. One that an earlier process saw last has only
// just gone: after a reboot both start together.
func devicePluginCounts(counted, there bool, goneSince, now time.Time) (counts bool, since time.Time) {
	switch {
	case there:
		return true, time.Time{}
	case !counted:
		return false, time.Time{}
	case goneSince.IsZero():
		return true, now
	case now.Sub(goneSince) >= devicePluginGrace:
		return false, time.Time{}
	default:
		return true, goneSince
	}
}

// saveDevicePlugin remembers whether a device plugin is here, and if none is, since
// when it cannot have given anything to a pod.
func (p *Publisher) saveDevicePlugin(there bool, node *nodeFacts) error {
	if p.checkpoint.DevicePlugin == there {
		return nil
	}
	m := p.checkpoint
	m.DevicePlugin, m.DevicePluginLeft = there, time.Time{}
	if !there {
		m.DevicePluginLeft = p.leftNow(node)
	}
	if err := p.State.PutNode(m); err != nil {
		return err
	}
	p.checkpoint = m
	p.Pods.SetLeft(m.DevicePluginLeft)
	return nil
}

// leftNow is when the last device plugin left of a node that is found without one: by now, as the checkpoint has the
// time; long ago where the node has never had any, so that no pod can have been given anything,
// whenever it was started.
func (p *Publisher) leftNow(node *nodeFacts) time.Time {
	if node.hadDevicePlugin {
		return p.Clock.Now().UTC().Truncate(time.Second)
	}
	return time.Unix(0, 0).UTC()
}
