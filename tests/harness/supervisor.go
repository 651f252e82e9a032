// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// supervisorProgram is the whole command line of gpu-mps-supervisor in its
// container.
const supervisorProgram = "/usr/bin/gpu-mps-supervisor\x00"

// Supervisor finds the process of gpu-mps-supervisor on a node.
func (c *Cluster) Supervisor(t *testing.T, node string) *os.Process {
	t.Helper()
	_, process := c.supervisorThat(t, node, "runs", func(*corev1.Pod) bool { return true })
	return process
}

func (c *Cluster) supervisorThat(t *testing.T, node, what string, condition func(*corev1.Pod) bool) (pod *corev1.Pod,
	process *os.Process) {
	t.Helper()
	Eventually(t, fmt.Sprintf("gpu-mps-supervisor of node %s: %s", node, what), func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(PluginNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component=gpu-mps-supervisor", FieldSelector: "spec.nodeName=" + node,
		})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		pod = &pods.Items[0]
		if err := running(pod); err != nil {
			return err
		}
		if !condition(pod) {
			return fmt.Errorf("pod %s is there", pod.Name)
		}
		process, err = processOf(pod, func(cmdline string) bool { return cmdline == supervisorProgram })
		return err
	})
	return pod, process
}

// ReplaceSupervisor deletes the pod of gpu-mps-supervisor on a node, as for an
// update, and waits until another one serves all GPUs. The kubelet has no grudge
// against that one for the times that a test has killed its predecessor.
func (c *Cluster) ReplaceSupervisor(t *testing.T, node string) {
	t.Helper()
	old, _ := c.supervisorThat(t, node, "runs", func(*corev1.Pod) bool { return true })
	expect.NoErrorf(t, c.Client.CoreV1().Pods(PluginNamespace).Delete(Context(t), old.Name, metav1.DeleteOptions{}),
		"delete gpu-mps-supervisor of node %s", node)
	c.supervisorThat(t, node, "runs in another pod", func(pod *corev1.Pod) bool { return pod.UID != old.UID })
	gpus := c.GPUs(t, node)
	Eventually(t, "the MPS control daemons of node "+node+" to serve", func(context.Context) error {
		var errs []error
		for _, g := range gpus {
			errs = append(errs, c.MPS(node).Check(g.UUID))
		}
		return errors.Join(errs...)
	})
}

// MPSDaemon finds the MPS control daemon of a GPU of a node: the child of the node's supervisor that has the GPU in its
// environment.
func (c *Cluster) MPSDaemon(t *testing.T, node, uuid string) *os.Process {
	t.Helper()
	return c.ofMPS(t, node, uuid, c.Supervisor(t, node), "\x00CUDA_VISIBLE_DEVICES="+uuid+"\x00")
}

// MPSServer finds the MPS server of a GPU of a node, which its daemon has started.
func (c *Cluster) MPSServer(t *testing.T, node, uuid string) *os.Process {
	t.Helper()
	return c.ofMPS(t, node, uuid, c.MPSDaemon(t, node, uuid), "")
}

func (c *Cluster) ofMPS(t *testing.T, node, uuid string, parent *os.Process, environment string) *os.Process {
	t.Helper()
	child, err := Child(parent, func(environ string) bool { return strings.Contains("\x00"+environ, environment) })
	if err != nil {
		status, statusErr := c.MPS(node).Status(uuid)
		t.Fatalf("daemon and server of MPS on GPU %s: %v; the status is %+v (%v)", uuid, err, status, statusErr)
	}
	return child
}

// MPS is the directory that plugin and supervisor of a node share.
func (c *Cluster) MPS(node string) mps.Dir { return mps.Dir(c.NodeFile(node, mps.DefaultHostDir)) }

// Inside is a path as the program of a running pod's only container sees it. What is done
// there is what root in the container may do, with every capability.
func (n *Namespace) Inside(t *testing.T, pod, path string) string {
	t.Helper()
	return filepath.Join(fmt.Sprintf("/proc/%d/root", n.process(t, pod).Pid), path)
}
