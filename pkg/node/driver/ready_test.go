// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// The plugin is healthy if it answers on both of its sockets, also while its GPUs have not
// been read, which no restart changes.
func TestHealthyIsWhoAnswersOnBothSockets(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	dir := t.TempDir()
	cfg := Config{PodUID: "uid", PluginDir: dir, RegistrarDir: dir}
	if err := CheckHealthy(ctx, cfg); err == nil || !strings.Contains(err.Error(), cfg.registrarSocket()) {
		t.Errorf("before it starts: %v", err)
	}
	helper, err := kubeletplugin.Start(ctx, &driver{read: make(chan struct{})},
		kubeletplugin.DriverName(v1alpha1.DriverName), kubeletplugin.KubeClient(fake.NewClientset()),
		kubeletplugin.PluginDataDirectoryPath(dir), kubeletplugin.RegistrarDirectoryPath(dir),
		kubeletplugin.RollingUpdate(cfg.PodUID), kubeletplugin.Serialize(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckHealthy(ctx, cfg); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	other := Config{PodUID: "uid", PluginDir: filepath.Join(dir, "other"), RegistrarDir: dir}
	if err := CheckHealthy(ctx, other); err == nil || !strings.Contains(err.Error(), other.draSocket()) {
		t.Errorf("where nobody answers for claims: %v", err)
	}
	helper.Stop()
	if err := CheckHealthy(ctx, cfg); err == nil {
		t.Error("healthy after its end")
	}
}
