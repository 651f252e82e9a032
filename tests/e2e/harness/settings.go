// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// WaitPluginSetting waits until the plugins of all nodes see that a key of their ConfigMap has a
// value, or, where that is empty, is not there. A kubelet brings it when it looks at the pod: a
// changed annotation has it look now, instead of within a minute and a half. All are had to look
// at once: on a busy machine a node takes seconds for it.
func (c *Cluster) WaitPluginSetting(t *testing.T, key, value string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("all plugins to see %s=%s", key, value), func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(PluginNamespace).List(ctx, metav1.ListOptions{LabelSelector: PluginSelector})
		if err != nil {
			return err
		}
		var errs []error
		for _, pod := range pods.Items {
			file := c.NodeFile(pod.Spec.NodeName, filepath.Join("var/lib/kubelet/pods", string(pod.UID),
				"volumes/kubernetes.io~configmap/settings", key))
			seen, err := os.ReadFile(file)
			if err == nil && string(seen) == value || value == "" && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			note := fmt.Appendf(nil, `{"metadata":{"annotations":{"gpu.aliyun.com/look":%q}}}`,
				time.Now().Format(time.RFC3339Nano))
			if _, err := c.Client.CoreV1().Pods(PluginNamespace).Patch(ctx, pod.Name, types.MergePatchType, note,
				metav1.PatchOptions{}); err != nil {
				return err
			}
			errs = append(errs, fmt.Errorf("the plugin of node %s sees %q", pod.Spec.NodeName, seen))
		}
		return errors.Join(errs...)
	})
}
