// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// The plugin is healthy if it answers on both of its sockets, also while its GPUs have not
// been read, which no restart changes.
func TestHealthyIsWhoAnswersOnBothSockets(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	dir := t.TempDir()
	cfg := Config{PodUID: "uid", PluginDir: dir, RegistrarDir: dir}
	expect.Error(t, CheckHealthy(ctx, cfg), cfg.registrarSocket())
	helper, err := kubeletplugin.Start(ctx, &driver{read: make(chan struct{})},
		kubeletplugin.DriverName(v1alpha1.DriverName), kubeletplugin.KubeClient(fake.NewClientset()),
		kubeletplugin.PluginDataDirectoryPath(dir), kubeletplugin.RegistrarDirectoryPath(dir),
		kubeletplugin.RollingUpdate(cfg.PodUID), kubeletplugin.Serialize(false))
	expect.NoError(t, err)
	expect.Error(t, CheckHealthy(ctx, cfg))
	other := Config{PodUID: "uid", PluginDir: filepath.Join(dir, "other"), RegistrarDir: dir}
	expect.Error(t, CheckHealthy(ctx, other), other.draSocket())
	helper.Stop()
	if err := CheckHealthy(ctx, cfg); err == nil {
		t.Error("healthy after its end")
	}
}
