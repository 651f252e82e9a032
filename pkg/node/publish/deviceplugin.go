// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// afterDevicePlugin is the checkpoint with whether a device plugin is here, and since when one has been gone that
// counts still. It offers nothing while one that was has been gone for less than devicePluginGrace. One without healthy
// devices is here: they may recover.
func (s snapshot) afterDevicePlugin(w *desired) (checkpoint state.Node, goneSince time.Time) {
	there := len(s.node.devicePlugin) > 0
	unhealthy := !there && len(s.node.withDevices) > 0 && s.checkpoint.DevicePlugin
	counts, goneSince := devicePluginCounts(s.checkpoint.DevicePlugin, there || unhealthy, s.devicePluginGoneSince, s.now)
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
	checkpoint = s.checkpoint
	if checkpoint.DevicePlugin != counts {
		checkpoint.DevicePlugin, checkpoint.DevicePluginLeft = counts, time.Time{}
		if !counts {
			checkpoint.DevicePluginLeft = s.leftNow()
		}
	}
	return checkpoint, goneSince
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

// leftNow is when the last device plugin left of a node that is found without one: by now, as the checkpoint has the
// time; long ago where the node has never had any, so that no pod can have been given anything,
// whenever it was started.
func (s snapshot) leftNow() time.Time {
	if s.node.hadDevicePlugin {
		return s.now.UTC().Truncate(time.Second)
	}
	return time.Unix(0, 0).UTC()
}
