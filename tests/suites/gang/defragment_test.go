// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// deployOn makes a Deployment of one pod while no other node of these takes pods.
func deployOn(t *testing.T, ns *harness.Namespace, name, template, on string) {
	t.Helper()
	others := []string{"whole", "share"}
	cordon := func(command string) {
		for _, node := range others {
			if node == on {
				continue
			}
			ns.MustKubectl(t, command, node)
		}
	}
	cordon("cordon")
	defer cordon("uncordon")
	ns.Deploy(t, harness.Deployment(name, 1, anywhere(name, template)))
	podOf(t, ns, name, on)
}

// podOf waits until the one pod of a Deployment runs on a node, and returns its name.
func podOf(t *testing.T, ns *harness.Namespace, deployment, on string) (name string) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("the pod of deployment %s to run on node %s", deployment, on),
		func(ctx context.Context) error {
			pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + deployment})
			if err != nil {
				return err
			}
			if len(pods.Items) != 1 {
				return fmt.Errorf("there are %d pods", len(pods.Items))
			}
			pod := &pods.Items[0]
			if name = pod.Name; pod.Spec.NodeName != on || pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s on node %q", name, pod.Status.Phase, pod.Spec.NodeName)
			}
			return nil
		})
	return name
}

// setDefragment has the controller defragment until the test ends.
func setDefragment(t *testing.T, ns *harness.Namespace, setting string) {
	t.Helper()
	// The rights stay: the controller uses them until it knows that the setting is gone.
	ns.MustKubectl(t, "apply", "-k", "../../../deployments/options/defragment")
	cluster.SetController(t, map[string]string{"DEFRAGMENT": setting})
}

// Two nodes have a GPU each with a Deployment's share, and a pod waits that needs one of these GPUs. One Deployment's
// budget keeps its pod. The other's pod goes to that node, once, though the controller is killed meanwhile, and the pod
// that waits gets the GPU.
func TestDefragment(t *testing.T) {
	setMode := cluster.Label(t, "whole", ack.NodeLabelSchedule)
	setMode("share")
	ns := cluster.Namespace(t)
	cluster.Publishes(t, "whole", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")
	for template, gib := range map[string]string{"all": "15Gi", "small": "6Gi", "big": "8Gi"} {
		ns.Template(t, template, harness.Requests(harness.Share("gpu", gib)))
	}
	for _, node := range []string{"whole", "share"} {
		for i := range 3 {
			ns.Run(t, harness.Pod(fmt.Sprintf("%s-%d", node, i), node, harness.FromTemplate("all")))
		}
	}
	// While it ends, the node has no room for the next one: the scheduler alone would choose either.
	deployOn(t, ns, "mover", "big", "share")
	deployOn(t, ns, "kept", "small", "whole")
	ns.Keep(t, "kept")
	mover, kept := podOf(t, ns, "mover", "share"), podOf(t, ns, "kept", "whole")
	ns.Create(t, anywhere("large", "all"))
	ns.WaitUnschedulable(t, "large", "cannot allocate all claims")

	before, _ := cluster.Inspect(t, "-d", "-n", ns.Name)
	for _, row := range []string{`(?m)^` + mover + ` +\S+ .*\b8\b`, `(?m)^` + kept + ` +\S+ .*\b6\b`} {
		if !regexp.MustCompile(row).MatchString(before) {
			t.Errorf("before, the table lacks %s:\n%s", row, before)
		}
	}
	planned, _ := cluster.Inspect(t, "defragment", "--for", "pod/large", "-n", ns.Name)
	move := regexp.MustCompile(ns.Name + ` +` + mover + ` +share +whole\n`)
	if !move.MatchString(planned) || strings.Contains(planned, kept) ||
		!strings.Contains(planned, "Then find room: "+ns.Name+"/large") {
		t.Errorf("planned is:\n%s", planned)
	}
	setDefragment(t, ns, "evict")
	ns.WaitPodEvent(t, mover, v1alpha1.ReasonMoved, "evicted the pod from node share: node whole has room")
	cluster.KillLeader(t)
	podOf(t, ns, "mover", "whole")
	runsOn(t, ns, "large", "share")
	if again := podOf(t, ns, "kept", "whole"); again != kept {
		t.Errorf("the pod that a budget keeps is another one: %s, and was %s", again, kept)
	}
	after, _ := cluster.Inspect(t, "-d", "-n", ns.Name)
	if strings.Contains(after, mover) || !strings.Contains(after, "large") {
		t.Errorf("after, the table is:\n%s", after)
	}
	t.Logf("before:\n%s\nplanned:\n%s\nafter:\n%s", before, planned, after)
	// The next leader knows who was moved.
	lease, err := cluster.Client.CoordinationV1().Leases(harness.PluginNamespace).Get(t.Context(), v1alpha1.ControllerName,
		metav1.GetOptions{})
	if err == nil && strings.Count(lease.Annotations[v1alpha1.AnnotationMoved], `"uid"`) != 1 {
		err = errors.New("written down is " + lease.Annotations[v1alpha1.AnnotationMoved])
	}
	if err != nil {
		t.Errorf("one pod was moved: %v", err)
	}
	setMode("default")
}
