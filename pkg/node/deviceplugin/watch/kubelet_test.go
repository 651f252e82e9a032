// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
)

// Where no pod of a device plugin runs, no pod is read, and nothing waits for the kubelet.
func TestPodsThatAreNotWatched(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	pods := KubeletOnly(podresources.Client(filepath.Join(t.TempDir(), "none.sock")))
	m := &gpu.Machine{GPUs: gpusOfNode}
	for name, ask := range map[string]func(context.Context, *gpu.Machine) (deviceplugin.Reserved, error){
		"publisher": pods.Observe, "claim": pods.Reserved} {
		if got, err := ask(ctx, m); err != nil || len(got.Pods) > 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
