// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// ControllerSelector finds the pods of gpu-compat-controller in PluginNamespace.
const ControllerSelector = "app.kubernetes.io/component=" + v1alpha1.ControllerName

// controllerProgram is the whole command line of the controller in its container.
const controllerProgram = "/usr/bin/" + v1alpha1.ControllerName + "\x00"

// KillLeader kills the replica of gpu-compat-controller that leads, with SIGKILL,
// and returns the name of its pod. Where none leads it waits for one.
func (c *Cluster) KillLeader(t *testing.T) string {
	t.Helper()
	var name string
	Eventually(t, "a leader to kill", func(ctx context.Context) error {
		lease, process, err := c.leader(ctx)
		if err != nil {
			return err
		}
		name = *lease.Spec.HolderIdentity
		return process.Kill()
	})
	return name
}

// KillLeaderForGood kills the replica that leads with SIGKILL, and nothing starts it
// again: another one has to lead. It returns the lease as the replica last renewed it.
func (c *Cluster) KillLeaderForGood(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	var last *coordinationv1.Lease
	Eventually(t, "a leader to kill for good", func(ctx context.Context) error {
		lease, process, err := c.leader(ctx)
		if err != nil {
			return err
		}
		// When its pod is deleted it is told to end, and would hand the lease over. Were
		// it killed first, the kubelet might start it again before.
		if err := process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		defer func() {
			if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("kill the leader %s: %v", *lease.Spec.HolderIdentity, err)
			}
		}()
		if last, err = c.Lease(ctx); err != nil {
			return err
		}
		return c.Client.CoreV1().Pods(PluginNamespace).Delete(ctx, *lease.Spec.HolderIdentity,
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
	})
	return last
}

// Lease is the lease by which gpu-compat-controller elects its leader.
func (c *Cluster) Lease(ctx context.Context) (*coordinationv1.Lease, error) {
	return c.Client.CoordinationV1().Leases(PluginNamespace).Get(ctx, v1alpha1.ControllerName, metav1.GetOptions{})
}

// leader finds the lease of gpu-compat-controller and the process that has it.
func (c *Cluster) leader(ctx context.Context) (*coordinationv1.Lease, *os.Process, error) {
	lease, err := c.Lease(ctx)
	if err != nil {
		return nil, nil, err
	}
	name := ptr.Deref(lease.Spec.HolderIdentity, "")
	pod, err := c.Client.CoreV1().Pods(PluginNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("the leader %q: %w", name, err)
	}
	if err := running(pod); err != nil {
		return nil, nil, fmt.Errorf("the leader %s: %w", name, err)
	}
	process, err := processOf(pod, func(cmdline string) bool { return cmdline == controllerProgram })
	return lease, process, err
}

// StopController takes all replicas of gpu-compat-controller away until the returned
// function is called, which waits for them to be ready again, or the test ends.
func (c *Cluster) StopController(t *testing.T) (start func()) {
	t.Helper()
	deployments := c.Client.AppsV1().Deployments(PluginNamespace)
	before, err := deployments.GetScale(t.Context(), v1alpha1.ControllerName, metav1.GetOptions{})
	expect.NoError(t, err)
	scale := func(ctx context.Context, replicas int32) error {
		_, err := deployments.UpdateScale(ctx, v1alpha1.ControllerName, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ControllerName, Namespace: PluginNamespace},
			Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
		}, metav1.UpdateOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := scale(Context(t), before.Spec.Replicas); err != nil {
			t.Errorf("bring the replicas of %s back: %v", v1alpha1.ControllerName, err)
		}
	})
	expect.NoError(t, scale(t.Context(), 0))
	Eventually(t, v1alpha1.ControllerName+" to be gone", func(ctx context.Context) error {
		pods, err := c.controllers(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%d pods are there", len(pods))
		}
		return err
	})
	return func() {
		t.Helper()
		expect.NoError(t, scale(t.Context(), before.Spec.Replicas))
		Eventually(t, v1alpha1.ControllerName+" to run again", func(ctx context.Context) error {
			pods, err := c.controllers(ctx)
			if err != nil {
				return err
			}
			if len(pods) != int(before.Spec.Replicas) {
				return fmt.Errorf("there are %d pods", len(pods))
			}
			var errs []error
			for i := range pods {
				errs = append(errs, running(&pods[i]))
			}
			return errors.Join(errs...)
		})
	}
}

// RestartScheduler does things while kube-scheduler stands still, and then has another one
// start in its place, which finds all pods in its queue at once.
func (c *Cluster) RestartScheduler(t *testing.T, meanwhile func()) {
	t.Helper()
	process, err := FindProcess(func(cmdline, _ string) bool {
		program, arguments, _ := strings.Cut(cmdline, "\x00")
		return filepath.Base(program) == "kube-scheduler" &&
			strings.Contains(arguments, "--config="+filepath.Join(c.Dir, "scheduler.yaml")+"\x00")
	})
	expect.NoErrorf(t, err, "look for kube-scheduler")
	expect.NoErrorf(t, process.Signal(syscall.SIGSTOP), "stop kube-scheduler")
	defer func() {
		if err := process.Kill(); err != nil {
			t.Errorf("kill kube-scheduler: %v", err)
		}
	}()
	meanwhile()
}

func (c *Cluster) controllers(ctx context.Context) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(PluginNamespace).List(ctx, metav1.ListOptions{LabelSelector: ControllerSelector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
