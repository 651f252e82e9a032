// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package chartupgrade goes with the driver's Helm chart from one version to the next and back,
// and uninstalls it, while pods run and start on two nodes. lane chart-upgrade makes the cluster, on which
// nothing is installed, and the two versions.
package chartupgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	release = "dra-driver-gpushare"
	older   = "0.1.0"
	newer   = "0.2.0"
)

// nodes are those of the lane. Pods are placed on them by the name of their template.
var nodes = []string{"share", "mps"}

type charts struct {
	*harness.Namespace
}

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

func TestUpgradeRollbackUninstall(t *testing.T) {
	c := &charts{cluster.Namespace(t)}
	notes := c.install(t, older)
	if !strings.Contains(notes, `Before "helm uninstall", end the pods`) {
		t.Errorf("an installation does not say what its end will do:\n%s", notes)
	}
	c.serves(t, older)
	c.Template(t, "share", harness.Requests(harness.Share("gpu", "2Gi")))
	c.Template(t, "mps", harness.Requests(harness.Capped("mps", -1, "memory", "2Gi")))
	c.Run(t, c.pods("old")...)
	containers, supervisors := c.Containers(t), c.pluginsOf(t, "gpu-mps-supervisor")

	end := harness.Meanwhile(t, c.starts("share"), c.starts("mps"))
	c.helm(t, "upgrade", release, chart(newer), "--reuse-values",
		"--set", "options.nodeReadsClaims=true", "--set", "test.memory=2Gi")
	c.serves(t, newer)
	c.helm(t, "rollback", release, "1")
	c.serves(t, older)
	end()
	c.noneOf(t, "meanwhile")
	c.KeptRunning(t, containers)
	// Programs under MPS end with the supervisor: only the user replaces it.
	for name, uid := range c.pluginsOf(t, "gpu-mps-supervisor") {
		if supervisors[name] != uid {
			t.Errorf("pod %s of gpu-mps-supervisor is another one after the upgrade and the rollback", name)
		}
	}

	c.uninstalledWhilePodsRun(t, containers)
	c.install(t, newer)
	c.serves(t, newer)
	c.noneOf(t, "old-gone")
	delete(containers, "old-gone-share")
	delete(containers, "old-gone-mps")
	c.KeptRunning(t, containers)
	c.Run(t, c.pods("new")...)
	c.helm(t, "test", release, "--logs")

	c.Delete(t, "old-share", "old-mps", "new-share", "new-mps", "new-gone-share", "new-gone-mps")
	for _, node := range nodes {
		harness.Eventually(t, "nothing to be left on node "+node,
			func(context.Context) error { return c.CheckNothingOn(node) })
	}
	c.helm(t, "uninstall", release)
	c.isGone(t)
	c.leftNothing(t)
}

func chart(version string) string {
	return filepath.Join(os.Getenv("CHARTS"), release+"-"+version+".tgz")
}

// helm runs Helm as a user does, and returns what it prints.
func (c *charts) helm(t *testing.T, arguments ...string) string {
	t.Helper()
	arguments = append(arguments, "--namespace", harness.PluginNamespace,
		"--kubeconfig", filepath.Join(c.Dir, "kubeconfig"))
	command := exec.CommandContext(t.Context(), os.Getenv("HELM"), arguments...)
	output, err := command.CombinedOutput()
	t.Logf("%s\n%s", command, output)
	expect.NoErrorf(t, err, "helm %s", arguments[0])
	return string(output)
}

func (c *charts) install(t *testing.T, version string) (notes string) {
	t.Helper()
	return c.helm(t, "install", release, chart(version), "--set", "nvidiaDriverRoot=/run/nvidia/driver",
		"--set", "kubeletPlugin.settings.SYSFS_ROOT=/host/run/nvidia/driver/sys",
		"--set", "controller.settings.TEMPLATE_GRACE=5s")
}

// pods are two of each node, which have a GPU by a claim.
func (c *charts) pods(prefix string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, node := range nodes {
		for _, name := range []string{prefix + "-" + node, prefix + "-gone-" + node} {
			pods = append(pods, harness.Pod(name, node, harness.FromTemplate(node)))
		}
	}
	return pods
}

// starts makes a pod with a share, waits until it runs, and takes it away again.
func (c *charts) starts(node string) func(context.Context) error {
	n := 0
	return func(ctx context.Context) error {
		n++
		pods := c.Client.CoreV1().Pods(c.Name)
		pod := harness.Pod(fmt.Sprintf("meanwhile-%s-%d", node, n), node, harness.FromTemplate(node))
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := harness.Poll(ctx, time.Minute, func(ctx context.Context) error {
			got, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
			if err == nil && got.Status.Phase != corev1.PodRunning {
				err = fmt.Errorf("it is %s: %v", got.Status.Phase, got.Status.Conditions)
			}
			return err
		}); err != nil {
			return fmt.Errorf("pod %s does not run: %w", pod.Name, err)
		}
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
	}
}

// driverPods are the pods of the release by their component.
func (c *charts) driverPods(ctx context.Context, component string) ([]corev1.Pod, error) {
	pods, err := c.Client.CoreV1().Pods(harness.PluginNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=" + component,
	})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

func (c *charts) pluginsOf(t *testing.T, component string) map[string]types.UID {
	t.Helper()
	pods, err := c.driverPods(t.Context(), component)
	if err != nil || len(pods) == 0 {
		t.Fatalf("list the pods of %s: %d, %v", component, len(pods), err)
	}
	uids := map[string]types.UID{}
	for _, pod := range pods {
		uids[pod.Name] = pod.UID
	}
	return uids
}

// serves waits until plugins and controllers are all of a version, and ready.
func (c *charts) serves(t *testing.T, version string) {
	t.Helper()
	for _, component := range []string{"gpu-kubelet-plugin", "gpu-compat-controller"} {
		harness.Eventually(t, "the pods of "+component+" to be of version "+version, func(ctx context.Context) error {
			pods, err := c.driverPods(ctx, component)
			if err != nil {
				return err
			}
			if len(pods) != len(nodes) {
				return fmt.Errorf("there are %d pods", len(pods))
			}
			for _, pod := range pods {
				if err := isOf(&pod, version); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func isOf(pod *corev1.Pod, version string) error {
	if image := pod.Spec.Containers[0].Image; image != "localhost/dra-driver-gpushare:"+version {
		return fmt.Errorf("pod %s has the image %s", pod.Name, image)
	}
	if statuses := pod.Status.ContainerStatuses; len(statuses) == 0 || !statuses[0].Ready {
		return fmt.Errorf("pod %s is not ready: %v", pod.Name, statuses)
	}
	return nil
}

// noneOf waits until the pods whose names begin so are gone.
func (c *charts) noneOf(t *testing.T, prefix string) {
	t.Helper()
	harness.Eventually(t, "the pods "+prefix+"… to be gone", func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(c.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if !strings.HasPrefix(pod.Name, prefix) {
				continue
			}
			// The last of them may have been made when its round was ended.
			err := c.Client.CoreV1().Pods(c.Name).Delete(ctx, pod.Name, metav1.DeleteOptions{})
			if err == nil || apierrors.IsNotFound(err) {
				err = fmt.Errorf("pod %s is there", pod.Name)
			}
			return err
		}
		return nil
	})
}

// uninstalledWhilePodsRun takes the driver away under pods, which run on. Those that are deleted
// wait for the driver, as the notes of the installation say.
func (c *charts) uninstalledWhilePodsRun(t *testing.T, containers map[string]string) {
	t.Helper()
	c.helm(t, "uninstall", release)
	c.isGone(t)
	c.KeptRunning(t, containers)
	for _, node := range nodes {
		name := "old-gone-" + node
		expect.NoError(t, c.Client.CoreV1().Pods(c.Name).Delete(t.Context(), name, metav1.DeleteOptions{}))
		harness.Eventually(t, "the kubelet to say that pod "+name+" waits for the driver", func(context.Context) error {
			return c.kubeletWaits(node, name)
		})
		if pod := c.Get(t, name); pod.DeletionTimestamp == nil {
			t.Errorf("pod %s is not terminating", name)
		}
	}
}

// kubeletWaits looks for what the kubelet logs while it cannot release a pod's claim: no Event
// tells.
func (c *charts) kubeletWaits(node, pod string) error {
	path := filepath.Join(c.Dir, "logs", node+"-kubelet.log")
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(content)) {
		if harness.ContainsAll(line, []string{"Error syncing pod", c.Name + "/" + pod, "gpu.aliyun.com"}) {
			return nil
		}
	}
	return fmt.Errorf("%s has no such line", path)
}

// isGone waits until no pod and no ResourceSlice of the driver is there.
func (c *charts) isGone(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "the driver to be gone", func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(harness.PluginNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=" + release, FieldSelector: "status.phase=Running",
		})
		if err != nil {
			return err
		}
		slices, err := c.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
			FieldSelector: "spec.driver=gpu.aliyun.com",
		})
		if err != nil {
			return err
		}
		if len(pods.Items)+len(slices.Items) > 0 {
			return fmt.Errorf("%d pods run and %d ResourceSlices are there", len(pods.Items), len(slices.Items))
		}
		return nil
	})
}

// leftNothing looks for objects of the release. What others made, the controller and `helm
// test`, docs/install.md removes.
func (c *charts) leftNothing(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "nothing of the release to be left", func(context.Context) error {
		output, err := c.Kubectl(t, "get", "--all-namespaces", "--selector", "app.kubernetes.io/managed-by=Helm",
			"--output", "name", "daemonsets,deployments,configmaps,serviceaccounts,clusterroles,clusterrolebindings,roles,"+
				"rolebindings,deviceclasses,resourceclaimtemplates,validatingadmissionpolicies,"+
				"validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings")
		if left := strings.TrimSpace(output); err == nil && left != "" && left != "No resources found" {
			err = errors.New(left)
		}
		return err
	})
}
