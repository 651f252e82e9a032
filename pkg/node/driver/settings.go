// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// watchSettings tells on the node of settings that this program would not start with.
func (a *agent) watchSettings(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-a.Refused:
			if err == nil {
				a.events.Clear(v1alpha1.ReasonSettingsRefused)
				continue
			}
			a.events.Warn(v1alpha1.ReasonSettingsRefused, "The plugin refuses the changed ConfigMap gpu-kubelet-plugin, "+
				"and keeps its earlier settings until the new ones are right: "+err.Error())
		}
	}
}
