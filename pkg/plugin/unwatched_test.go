package plugin

import (
	"context"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Where no pod of a device plugin runs, no pod is read, and nothing waits for the kubelet.
func TestPodsThatAreNotWatched(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset(oldPod("forged", "0", "aliyun.com/gpu-mem", "4"))
	a := &agent{Config: Config{
		Client: client, NodeName: "n1", PluginDir: t.TempDir(), PodResources: podresources.Client(filepath.Join(t.TempDir(), "none.sock")),
	}}
	if err := a.followPods(ctx, func() {}); err != nil {
		t.Fatal(err)
	}
	m := &gpu.Machine{GPUs: cardsOfSights}
	for name, ask := range map[string]func(context.Context, *gpu.Machine) (deviceplugin.Taken, error){"publisher": a.pods.look, "claim": a.pods.soon} {
		if got, err := ask(ctx, m); err != nil || len(got.Pods) > 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if actions := client.Actions(); len(actions) > 0 {
		t.Errorf("the API server was asked %v", actions)
	}
}
