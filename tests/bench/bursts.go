// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	burstCount = 13
	burstSize  = 8
	// latePatience is how long a pod is waited for that was refused its claim at first.
	latePatience = 150 * time.Second
)

// optionName is what deployments/options/node-reads-claims calls its objects.
const optionName = "gpushare:node-reads-claims"

// bursts are all bursts under one condition.
type bursts struct {
	mu      sync.Mutex
	times   stats.Sample
	refused int
	errs    []error
}

// measureBursts makes bursts of pods with claims of each driver, in turn with kubelets that may
// read all claims and without, as they are left.
func measureBursts(ctx context.Context, b *bench) ([]stats.Row, error) {
	type condition struct {
		name         string
		option       bool
		ours, nvidia bursts
	}
	with, without := &condition{name: "with", option: true}, &condition{name: "without"}
	for i := range burstCount {
		for _, c := range []*condition{with, without} {
			if err := b.setOption(ctx, c.option); err != nil {
				return nil, err
			}
			if err := b.awaitOffered(ctx); err != nil {
				return nil, err
			}
			c.ours.run(ctx, b.pods, fmt.Sprintf("burst-%s-%d", c.name, i), gpushareTemplate)
			if b.nvidia != nil {
				c.nvidia.run(ctx, b.pods, fmt.Sprintf("burst-nvidia-%s-%d", c.name, i), nvidiaTemplate)
			}
		}
	}
	row := func(c *condition, is, target string) stats.Row {
		return stats.Row{
			Measure: fmt.Sprintf("%d bursts of %d pods with a claim, %s: create → Running, p50 / p90 / max (pods refused "+
				"their claim at first)", burstCount, burstSize, is),
			Product: c.ours.summary(), NVIDIA: b.ofNVIDIA(c.nvidia.summary()), Target: target,
		}
	}
	return []stats.Row{
		row(with, "option node-reads-claims", "p90 < 3 s"),
		row(without, "without that option", "max < 6 s"),
	}, errors.Join(slices.Concat(with.ours.errs, with.nvidia.errs, without.ours.errs, without.nvidia.errs)...)
}

// awaitOffered waits until all GPUs are offered: the plugin looks every few seconds who of another driver's pods has
// some, and a burst of NVIDIA's driver has all.
func (b *bench) awaitOffered(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, answerTimeout, true,
		func(ctx context.Context) (bool, error) {
			published, err := b.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
				FieldSelector: "spec.driver=" + v1alpha1.DriverName})
			if err != nil {
				return false, err
			}
			for _, slice := range published.Items {
				for _, device := range slice.Spec.Devices {
					if len(device.Taints) > 0 {
						return false, nil
					}
				}
			}
			return len(published.Items) > 0, nil
		})
	if err != nil {
		return fmt.Errorf("wait until all GPUs are offered: %w", err)
	}
	return nil
}

// summary is the cell of a table for all bursts.
func (u *bursts) summary() string {
	return fmt.Sprintf("%s (%d)", u.times.Summary(0.5, 0.9, 1), u.refused)
}

// run makes one burst. It returns when all of its pods are gone: NVIDIA's driver has no GPU left
// for the next burst while a pod waits for its claim.
func (u *bursts) run(ctx context.Context, runner *pods.Runner, name, template string) {
	var burst sync.WaitGroup
	for i := range burstSize {
		burst.Go(func() {
			pod, err := runner.Create(ctx, fmt.Sprintf("%s-%d", name, i), template)
			if err != nil {
				u.note(pod, 0, err)
				return
			}
			u.finish(ctx, runner, pod)
		})
	}
	burst.Wait()
}

// finish waits for a pod, notes how it went, and deletes it.
func (u *bursts) finish(ctx context.Context, runner *pods.Runner, pod *pods.Pod) {
	ctx, cancel := context.WithTimeout(ctx, latePatience)
	defer cancel()
	took, err := pod.Running(ctx)
	u.note(pod, took, err)
	if err := runner.Delete(ctx, pod); err != nil {
		u.note(pod, 0, err)
	}
}

func (u *bursts) note(pod *pods.Pod, took time.Duration, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.errs = append(u.errs, err)
		return
	}
	u.times = append(u.times, took)
	if pod.Failures() > 0 {
		u.refused++
	}
}

// setOption grants kubelets to read all claims or takes it back, and waits
// until the API server goes by it.
func (b *bench) setOption(ctx context.Context, on bool) error {
	api := b.client.RbacV1().ClusterRoleBindings()
	var err error
	if on {
		_, err = api.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: optionName},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: optionName},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}},
		}, metav1.CreateOptions{})
	} else {
		err = api.Delete(ctx, optionName, metav1.DeleteOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("switch the option node-reads-claims: %w", err)
	}
	question := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:node:" + b.node, Groups: []string{"system:nodes", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims", Namespace: namespace,
			Name: "of-another-node",
		},
	}}
	err = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, answerTimeout, true,
		func(ctx context.Context) (bool, error) {
			answer, err := b.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, question, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed == on, err
		})
	if err != nil {
		return fmt.Errorf("wait until the option node-reads-claims is switched: %w", err)
	}
	return nil
}
