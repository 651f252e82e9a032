// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/driver"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	restartRounds   = 5
	restartPods     = 20
	pluginNamespace = "kube-system"
	pluginSelector  = "app.kubernetes.io/component=gpu-kubelet-plugin"
)

// measureRestarts kills the node's plugin while many pods start, as where its container is
// updated or ends for want of memory: its kubelet starts it anew. The same pods without that,
// and such as have no claim, show how long the node takes for so many at once.
func measureRestarts(ctx context.Context, b *bench) ([]stats.Row, error) {
	killed, alive, plain := &bursts{}, &bursts{}, &bursts{}
	nothing := func() error { return nil }
	for round := range restartRounds {
		for _, crowd := range []struct {
			*bursts
			name, template string
			meanwhile      func() error
		}{
			{plain, "plain", "", nothing},
			{alive, "alive", gpushareTemplate, nothing},
			{killed, "killed", gpushareTemplate, killPlugin},
		} {
			name := fmt.Sprintf("restart-%s-%d", crowd.name, round)
			if err := b.crowd(ctx, crowd.bursts, name, crowd.template, crowd.meanwhile); err != nil {
				return nil, err
			}
		}
		// Or its kubelet would wait before it starts one again that ended twice.
		if err := b.replacePlugin(ctx); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(slices.Concat(killed.errs, alive.errs, plain.errs)...); err != nil {
		return nil, err
	}
	row := func(condition string, u *bursts, target string) stats.Row {
		return stats.Row{
			Measure: fmt.Sprintf("%d times %d pods with a claim, %s: create → Running, p50 / p90 / max (pods refused "+
				"their claim at first)", restartRounds, restartPods, condition),
			Product: fmt.Sprintf("%s (%d)", u.times.Summary(0.5, 0.9, 1), u.refused),
			Base:    plain.times.Summary(0.5, 0.9, 1), Target: target,
		}
	}
	return []stats.Row{
		row("the plugin killed when the first has a node", killed, "max < 6 s"),
		row("the plugin left alone", alive, ""),
	}, nil
}

// crowd makes many pods at once, calls meanwhile when the first has a node, and waits until
// all have run and are gone.
func (b *bench) crowd(ctx context.Context, all *bursts, name, template string, meanwhile func() error) error {
	var started []*pods.Pod
	var running sync.WaitGroup
	for i := range restartPods {
		pod, err := b.pods.Create(ctx, fmt.Sprintf("%s-%d", name, i), template)
		if err != nil {
			return err
		}
		started = append(started, pod)
		if i > 0 {
			continue
		}
		running.Go(func() {
			_, err := pod.Scheduled(ctx)
			if err == nil {
				err = meanwhile()
			}
			if err != nil {
				all.note(pod, 0, err)
			}
		})
	}
	for _, pod := range started {
		running.Go(func() { all.finish(ctx, b.pods, pod) })
	}
	running.Wait()
	return nil
}

// killPlugin kills the plugin of the only node.
func killPlugin() error {
	running, err := driver.Running(pluginProgram)
	if err != nil {
		return fmt.Errorf("kill the plugin: %w", err)
	}
	if err := syscall.Kill(running[0], syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the plugin, process %d: %w", running[0], err)
	}
	return nil
}

// replacePlugin deletes the plugin's pod and waits for the one that comes after it.
func (b *bench) replacePlugin(ctx context.Context) error {
	api := b.client.CoreV1().Pods(pluginNamespace)
	list := func(ctx context.Context) ([]corev1.Pod, error) {
		onNode := metav1.ListOptions{LabelSelector: pluginSelector, FieldSelector: "spec.nodeName=" + b.node}
		found, err := api.List(ctx, onNode)
		if err != nil {
			return nil, fmt.Errorf("look for the plugin of node %s: %w", b.node, err)
		}
		return found.Items, nil
	}
	old, err := list(ctx)
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for _, pod := range old {
		gone[pod.Name] = true
		if err := api.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("replace the plugin of node %s: %w", b.node, err)
		}
	}
	const interval = 200 * time.Millisecond
	err = wait.PollUntilContextTimeout(ctx, interval, latePatience, true, func(ctx context.Context) (bool, error) {
		now, err := list(ctx)
		return err == nil && len(now) == 1 && !gone[now[0].Name] && len(now[0].Status.ContainerStatuses) == 1 &&
			now[0].Status.ContainerStatuses[0].Ready, nil
	})
	if err != nil {
		return fmt.Errorf("wait for another plugin of node %s: %w", b.node, err)
	}
	return nil
}
