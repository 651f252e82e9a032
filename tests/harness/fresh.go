// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// componentLabel says of the driver's pods what they are, nodeSelector finds those of its
// DaemonSets in PluginNamespace.
const (
	componentLabel = "app.kubernetes.io/component"
	nodeSelector   = componentLabel + " in (gpu-kubelet-plugin, gpu-mps-supervisor)"
)

// FreshAfterFailure replaces the driver's pods of a node when the test ends, if it has failed:
// a new pod has its directories mounted again, is at peace with the kubelet, which starts what
// has ended again only after a while, and knows nothing of what was broken. It is to be called
// before something is broken, so that it comes after what puts that back.
func (c *Cluster) FreshAfterFailure(t *testing.T, node string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			c.replacePods(t, metav1.ListOptions{LabelSelector: nodeSelector, FieldSelector: "spec.nodeName=" + node})
		}
	})
}

// replacePods deletes pods of the driver's DaemonSets and waits until others are ready.
func (c *Cluster) replacePods(t *testing.T, options metav1.ListOptions) {
	t.Helper()
	pods := c.Client.CoreV1().Pods(PluginNamespace)
	before, err := pods.List(Context(t), options)
	expect.NoErrorf(t, err, "list the driver's pods")
	place := func(pod *corev1.Pod) string { return pod.Labels[componentLabel] + " on " + pod.Spec.NodeName }
	old, places := map[types.UID]bool{}, map[string]bool{}
	for i := range before.Items {
		old[before.Items[i].UID], places[place(&before.Items[i])] = true, true
	}
	expect.NoErrorf(t, pods.DeleteCollection(Context(t), metav1.DeleteOptions{}, options), "delete the driver's pods")
	Eventually(t, "other pods of the driver to be ready", func(ctx context.Context) error {
		now, err := pods.List(ctx, options)
		if err != nil {
			return err
		}
		missing := maps.Clone(places)
		for i := range now.Items {
			pod := &now.Items[i]
			if old[pod.UID] || !ready(pod) {
				return fmt.Errorf("pod %s is there, and %s", pod.Name, pod.Status.Phase)
			}
			delete(missing, place(pod))
		}
		if len(missing) > 0 {
			return fmt.Errorf("there are none of %v", missing)
		}
		return nil
	})
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
