// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The replica that leads says of each of its parts that it works: the kubelet asks for
// it, and with the same path so can an administrator.
func TestControllerSaysThatItWorks(t *testing.T) {
	t.Parallel()
	cluster.Share(t, v1alpha1.ControllerName)
	parts := []string{"nodelabels", "waiting", "claimtemplates", "nodestatus", "podannotations", "deviceclass"}
	harness.Eventually(t, "the replicas to be ready and one to lead", func(ctx context.Context) error {
		pods, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).List(ctx,
			metav1.ListOptions{LabelSelector: harness.ControllerSelector})
		if err != nil {
			return err
		}
		var told []string
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodRunning {
				continue
			}
			answer, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).ProxyGet("http", pod.Name, "8081", "readyz",
				nil).DoRaw(ctx)
			told = append(told, fmt.Sprintf("%s: %s %v", pod.Name, answer, err))
			works := err == nil
			for _, part := range parts {
				works = works && strings.Contains(string(answer), "[+]"+part+" ok")
			}
			ready := len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].Ready
			if works && ready {
				return nil
			}
		}
		return fmt.Errorf("no replica is ready and says of %v that they work: %s", parts, strings.Join(told, "; "))
	})
}
