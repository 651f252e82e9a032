// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cri"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/hostdir"
)

// runtimeInterval is how often the container runtime is asked for its configuration.
const runtimeInterval = 30 * time.Second

// watchRuntime asks the node's container runtime, now and then, whether it finds the CDI
// specs that the plugin writes. Where nobody answers, what was said last holds.
func (a *agent) watchRuntime(ctx context.Context, usable *usability) {
	beat.Until(ctx, clock.RealClock{}, runtimeInterval, func(ctx context.Context) {
		if blind, answered := a.askRuntime(ctx); answered {
			usable.asked(blind)
		}
	})
}

// askRuntime returns why the container runtime of the kubelet finds no CDI specs of the
// plugin, nil where it does. It is false where that runtime does not answer, or cannot be
// asked: some nodes have another one beside it.
func (a *agent) askRuntime(ctx context.Context) (blind error, answered bool) {
	logger := klog.FromContext(ctx).V(4)
	ofKubelet := a.runtimeName.Load()
	for _, socket := range cri.Sockets() {
		runtime, err := cri.Ask(ctx, filepath.Join(a.GPUs.HostRoot, socket))
		switch {
		case err != nil:
			logger.Info("No container runtime answers", "socket", socket, "err", err)
		case ofKubelet == nil || runtime.Name != *ofKubelet:
			logger.Info("A container runtime is not the kubelet's", "socket", socket, "runtime", runtime.Name)
		default:
			return runtime.Finds(a.CDIDir, func(x, y string) bool { return hostdir.Same(a.GPUs.HostRoot, x, y) }), true
		}
	}
	return nil, false
}
