// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// With a wrong setting every pod would be allocated a GPU and none would start.
func TestNodeOnWhichNothingCouldStartOffersNothing(t *testing.T) {
	b := newBench(t)
	b.SetUnusable(errors.New("CDI_DIR: directory /cdi is another one than the host's"))
	b.mode("share")
	b.reconciled(t, false, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "CDI_DIR")
	b.SetUnusable(nil)
	b.reconciled(t, true, "gpu-0-share gpu-1-share")
	expect.Equal(t, "", b.events.current[v1alpha1.ReasonModeNotServed], "it is still said")

	// What is allocated keeps its devices, closed to new claims.
	b.allocate(t, "gpu-0-share", "a")
	b.SetUnusable(errors.New("NVIDIA_DEV_ROOT: device node /dev/nvidiactl: is missing"))
	b.reconciled(t, false, "gpu-0-share! gpu-1-share!")
	b.clock.Step(mode.Settle)
	b.reconciled(t, false, "gpu-0-share! gpu-1-share!")
	b.SetUnusable(nil)
	b.reconciled(t, true, "gpu-0-share gpu-1-share")
}
