// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	otherTurns   = 6
	otherPerTurn = 100
	// otherNode is a Node without a kubelet: what a kubelet does with a pod is none of the measure.
	otherNode = "bench-others"
)

// measureOthers looks at what pods pay that have no claim and no GPU: with the driver installed
// and without, in turns.
func measureOthers(ctx context.Context, b *bench) ([]stats.Row, error) {
	if b.install == "" || b.uninstall == "" {
		return nil, errors.New("--install and --uninstall name no commands")
	}
	if err := b.makeOtherNode(ctx); err != nil {
		return nil, err
	}
	runner, err := pods.New(ctx, b.client, namespace, otherNode)
	if err != nil {
		return nil, err
	}
	var with, without stats.Sample
	for turn := range otherTurns {
		// Installed last, as the sections after this one need it.
		installed := turn%2 == 1
		command, into := b.uninstall, &without
		if installed {
			command, into = b.install, &with
		}
		if err := shell(ctx, command); err != nil {
			return nil, err
		}
		if err := rest(ctx, settling); err != nil {
			return nil, err
		}
		for i := range otherPerTurn {
			took, err := otherPod(ctx, b, runner, fmt.Sprintf("other-%d-%d", turn, i))
			if err != nil {
				return nil, err
			}
			*into = append(*into, took)
		}
	}
	return []stats.Row{{
		Measure: "pod without claim or GPU, create → scheduled, p50 / p90; difference of the medians",
		Product: fmt.Sprintf("%s; %s", with.Summary(0.5, 0.9), signed(with.Quantile(0.5)-without.Quantile(0.5))),
		Base:    without.Summary(0.5, 0.9), Target: "≤ +0.3 ms",
	}}, nil
}

func shell(ctx context.Context, command string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %q: %w", command, err)
	}
	return nil
}

// otherPod makes a pod and takes it away when it has a node.
func otherPod(ctx context.Context, b *bench, runner *pods.Runner, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	pod, err := runner.Create(ctx, name, "")
	if err != nil {
		return 0, err
	}
	took, err := pod.Scheduled(ctx)
	if err != nil {
		return 0, err
	}
	// No kubelet says that it has ended.
	err = b.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
	if err != nil {
		return 0, fmt.Errorf("delete pod %s: %w", name, err)
	}
	return took, rest(ctx, pace)
}

func (b *bench) makeOtherNode(ctx context.Context) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: otherNode,
		Labels: map[string]string{corev1.LabelHostname: otherNode}}}
	_, err := b.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make node %s: %w", otherNode, err)
	}
	room := []byte(`{"status": {"allocatable": {"pods": "1000"}, "capacity": {"pods": "1000"}}}`)
	_, err = b.client.CoreV1().Nodes().Patch(ctx, otherNode, types.MergePatchType, room, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("give node %s room for pods: %w", otherNode, err)
	}
	return nil
}
