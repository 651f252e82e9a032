// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/e2e/harness"
)

func everythingTolerated() []resourceapi.DeviceToleration {
	return []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
}

func templateOf(name string, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaimTemplate {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Spec = spec
	return template
}

// failures are the kubelet's Events about claims of the pod that could not be prepared:
// how many, and when the last one was.
func failures(ctx context.Context, ns *harness.Namespace, pod string) (count int32, last time.Time, err error) {
	events, err := ns.Client.CoreV1().Events(ns.Name).List(ctx, metav1.ListOptions{
		FieldSelector: "reason=" + failedPrepare + ",involvedObject.name=" + pod,
	})
	if err != nil {
		return 0, time.Time{}, err
	}
	for _, event := range events.Items {
		count += max(event.Count, 1)
		if at := event.LastTimestamp.Time; at.After(last) {
			last = at
		}
	}
	return count, last, nil
}

// syncedAtLeast says whether the kubelet tried so often to prepare the pod's claims.
func syncedAtLeast(ctx context.Context, ns *harness.Namespace, pod string, want int32) error {
	count, _, err := failures(ctx, ns, pod)
	if err == nil && count < want {
		err = fmt.Errorf("it failed %d times", count)
	}
	return err
}

// No pod waits for the kubelet's minute, after which it looks at such pods again by itself,
// because the plugin was away for a moment: the controller has asked for each.
func TestPodsStartSoonAfterThePluginIsBack(t *testing.T) {
	t.Parallel()
	cluster.Share(t, v1alpha1.ControllerName)
	cluster.Whole(t, "kill")
	cluster.FreshPlugin(t, "kill")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	var pods []*corev1.Pod
	for i := range 20 {
		pods = append(pods, harness.Pod(fmt.Sprintf("p-%d", i), "kill", harness.FromTemplate("one")))
	}
	ns.Create(t, pods...)
	harness.Eventually(t, "the first claim to be prepared", func(context.Context) error {
		if recordsOf(t, ns, "kill") == 0 {
			return errors.New("none is")
		}
		return nil
	})
	began := time.Now()
	cluster.KillPlugin(t, "kill")()
	t.Logf("the plugin is back %s after it was killed", since(began))
	failed, longest := 0, time.Duration(0)
	for _, pod := range pods {
		runsWithin(t, ns, pod.Name, retryTimeout)
		running, err := ns.Client.CoreV1().Pods(ns.Name).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		count, last, err := failures(t.Context(), ns, pod.Name)
		if err != nil {
			t.Fatal(err)
		}
		if count == 0 {
			continue
		}
		failed++
		started := running.Status.ContainerStatuses[0].State.Running.StartedAt.Time
		longest = max(longest, started.Sub(last))
		if running.Annotations[v1alpha1.AnnotationSyncRequested] == "" {
			t.Errorf("pod %s, which failed %d times, has no annotation %s", pod.Name, count, v1alpha1.AnnotationSyncRequested)
		}
	}
	t.Logf("%d of %d pods could not be prepared at first, and started up to %s after that; all run after %s", failed,
		len(pods), longest, since(began))
}
