// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Option applies an option of deployments/options until the test ends, or the returned function is called.
func (n *Namespace) Option(t *testing.T, name string) (remove func()) {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "deployments", "options", name)
	remove = sync.OnceFunc(func() {
		if _, err := n.Kubectl(t, "delete", "-k", dir, "--ignore-not-found"); err != nil {
			t.Errorf("remove option %s: %v", name, err)
		}
	})
	t.Cleanup(remove)
	n.MustKubectl(t, "apply", "-k", dir)
	return remove
}

// Keep makes a PodDisruptionBudget that protects the one pod with this label app.
func (n *Namespace) Keep(t *testing.T, app string) {
	t.Helper()
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	Make(t, n.Client.PolicyV1().PodDisruptionBudgets(n.Name), budget)
}

// SetController changes settings of the controller until the test ends.
func (c *Cluster) SetController(t *testing.T, settings map[string]string) {
	t.Helper()
	c.Set(t, v1alpha1.ControllerName, settings)
}

// Set changes settings in a ConfigMap of the driver's until the returned function is called or the test ends. A
// ConfigMap that was not there stays, empty.
func (c *Cluster) Set(t *testing.T, configMap string, settings map[string]string) (putBack func()) {
	t.Helper()
	configMaps := c.Client.CoreV1().ConfigMaps(PluginNamespace)
	found, err := configMaps.Get(Context(t), configMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("read the settings of %s: %v", configMap, err)
	}
	before := maps.Clone(found.Data)
	maps.DeleteFunc(before, func(key, _ string) bool { _, changes := settings[key]; return !changes })
	// One manager for each set of keys: who applies others takes none of these away.
	keys := slices.Sorted(maps.Keys(settings))
	options := metav1.ApplyOptions{Force: true, FieldManager: "tests-" + strings.Join(keys, "-")}
	set := func(data map[string]string) {
		t.Helper()
		if _, err := configMaps.Apply(Context(t), applycorev1.ConfigMap(configMap, PluginNamespace).WithData(data),
			options); err != nil {
			t.Errorf("change the settings of %s to %v: %v", configMap, data, err)
		}
	}
	putBack = func() { set(before) }
	t.Cleanup(putBack)
	set(settings)
	return putBack
}

// WaitPluginSetting waits until the plugin of a node sees that a setting has a value. The kubelet
// brings it when it looks at the pod: a changed annotation has it look now.
func (c *Cluster) WaitPluginSetting(t *testing.T, node, key, value string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("the plugin of node %s to see %s=%s", node, key, value), func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(PluginNamespace).List(ctx,
			metav1.ListOptions{LabelSelector: PluginSelector, FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		var errs []error
		for _, pod := range pods.Items {
			file := c.NodeFile(node, filepath.Join("var/lib/kubelet/pods", string(pod.UID),
				"volumes/kubernetes.io~configmap/settings", key))
			seen, readErr := os.ReadFile(file)
			if readErr == nil && string(seen) == value {
				continue
			}
			note := fmt.Appendf(nil, `{"metadata":{"annotations":{"gpu.aliyun.com/look":%q}}}`,
				time.Now().Format(time.RFC3339Nano))
			if _, err := c.Client.CoreV1().Pods(PluginNamespace).Patch(ctx, pod.Name, types.MergePatchType, note,
				metav1.PatchOptions{}); err != nil {
				return err
			}
			errs = append(errs, fmt.Errorf("pod %s sees %q", pod.Name, seen), readErr)
		}
		return errors.Join(errs...)
	})
}
