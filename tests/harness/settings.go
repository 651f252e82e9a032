// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

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
