// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

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

// ownSync is how long a kubelet leaves alone, at least, a pod whose claims could not be prepared.
func ownSync(t *testing.T, node string) time.Duration {
	t.Helper()
	var config struct {
		KubeletConfig struct{ SyncFrequency metav1.Duration }
	}
	answer, err := cluster.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).
		SubResource("proxy", "configz").DoRaw(t.Context())
	if err == nil {
		err = json.Unmarshal(answer, &config)
	}
	expect.NoErrorf(t, err, "ask the kubelet of node %s for its configuration", node)
	return config.KubeletConfig.SyncFrequency.Duration
}

// preparedAt is since when the status of the pod's claim has said what was prepared.
func preparedAt(t *testing.T, ns *harness.Namespace, pod string) (at time.Time) {
	t.Helper()
	harness.Eventually(t, "the status of the claim of pod "+pod+" to say what was prepared", func(context.Context) error {
		for _, device := range ns.ClaimOf(t, pod).Status.Devices {
			for _, condition := range device.Conditions {
				if at.IsZero() || condition.LastTransitionTime.Time.Before(at) {
					at = condition.LastTransitionTime.Time
				}
			}
		}
		if at.IsZero() {
			return errors.New("it says nothing")
		}
		return nil
	})
	return at
}

// failsWhileAway waits until the kubelet has tried to prepare claims of a pod, and nobody was
// there to do it.
func failsWhileAway(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	harness.Eventually(t, "a pod's claims to be asked for in vain", func(ctx context.Context) error {
		events, err := ns.Client.CoreV1().Events(ns.Name).List(ctx,
			metav1.ListOptions{FieldSelector: "reason=" + failedPrepare})
		if err != nil {
			return err
		}
		for i := range events.Items {
			if !harness.NotYetAuthorized(&events.Items[i]) {
				return nil
			}
		}
		return fmt.Errorf("%d Events say that they could not be prepared, none that the plugin is away", len(events.Items))
	})
}

// No pod waits for the kubelet's minute, after which it looks at such pods again by itself,
// because the plugin was away for a moment: the controller has asked for each. What a kubelet
// looks at by itself starts a minute after it failed, and not before; the node's kubelet is one
// that has Kubernetes' own timers.
func TestPodsStartSoonAfterThePluginIsBack(t *testing.T) {
	t.Parallel()
	cluster.Share(t, v1alpha1.ControllerName)
	cluster.Whole(t, "kill")
	own := ownSync(t, "kill")
	if own < time.Minute {
		t.Fatalf("the kubelet of node kill looks at its pods each %s: too often to tell who had it look; give the node "+
			"Kubernetes' own timers (+stock-timers)", own)
	}
	cluster.FreshPlugin(t, "kill")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	pods := harness.Pods(20, "p-", "kill", harness.FromTemplate("one"))
	// After its first end the plugin is started again at once, after its second one ten seconds
	// later; and by a kubelet that finds the pods there when it goes on.
	cluster.KillPlugin(t, "kill")()
	resume := cluster.PauseKubelet(t, "kill")
	serves := cluster.KillPlugin(t, "kill")
	ns.Create(t, pods...)
	for _, pod := range pods {
		ns.WaitBound(t, pod.Name)
	}
	resume()
	failsWhileAway(t, ns)
	serves()
	began := time.Now()
	failed, longest := 0, time.Duration(0)
	for _, pod := range pods {
		ns.WaitRunning(t, pod.Name)
		running := ns.Get(t, pod.Name)
		count, last, err := failures(t.Context(), ns, pod.Name)
		expect.NoError(t, err)
		if count == 0 {
			continue
		}
		failed++
		if running.Annotations[v1alpha1.AnnotationSyncRequested] == "" {
			t.Errorf("pod %s, which failed %d times, has no annotation %s", pod.Name, count, v1alpha1.AnnotationSyncRequested)
		}
		// What comes after it, the start of twenty containers, takes as long as the machine lets it.
		took := preparedAt(t, ns, pod.Name).Sub(last)
		if took >= own {
			t.Errorf("the claim of pod %s was prepared %s after that had failed: by then the kubelet looks at the pod by "+
				"itself, each %s", pod.Name, took, own)
		}
		longest = max(longest, took)
	}
	if failed == 0 {
		t.Error("no pod could not be prepared at first: nothing was tried")
	}
	t.Logf("%d of %d pods could not be prepared at first, and were up to %s after that; all run %s after the plugin "+
		"is back", failed, len(pods), longest, since(began))
}
