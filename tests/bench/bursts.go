// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	burstCount = 13
	burstSize  = 8
	// burstPatience is how long a burst is waited for before the next one: a
	// pod that takes longer takes a minute or more.
	burstPatience = 5 * time.Second
	// latePatience is how long single pods are waited for in the end.
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
	late    sync.WaitGroup
}

// measureBursts makes bursts of pods with claims, in turn with kubelets that may read all
// claims and without, as they are left.
func measureBursts(ctx context.Context, b *bench) ([]stats.Row, error) {
	with, without := &bursts{}, &bursts{}
	for i := range burstCount {
		for _, c := range []struct {
			*bursts
			option bool
			name   string
		}{{with, true, "with"}, {without, false, "without"}} {
			if err := b.setOption(ctx, c.option); err != nil {
				return nil, err
			}
			c.run(ctx, b.pods, fmt.Sprintf("burst-%s-%d", c.name, i))
		}
	}
	with.late.Wait()
	without.late.Wait()
	if err := errors.Join(append(with.errs, without.errs...)...); err != nil {
		return nil, err
	}
	return []stats.Row{
		with.row("option node-reads-claims", "p90 < 3 s"),
		without.row("without that option", "max < 6 s"),
	}, nil
}

func (u *bursts) row(condition, target string) stats.Row {
	return stats.Row{
		Measure: fmt.Sprintf("%d bursts of %d pods with a claim, %s: create → Running, p50 / p90 / max (pods refused "+
			"their claim at first)", burstCount, burstSize, condition),
		Product: fmt.Sprintf("%s (%d)", u.times.Summary(0.5, 0.9, 1), u.refused), Target: target,
	}
}

// run makes one burst. It returns when all of its pods are gone, or have been
// put off: they are waited for in the background (late).
func (u *bursts) run(ctx context.Context, runner *pods.Runner, name string) {
	var burst sync.WaitGroup
	for i := range burstSize {
		burst.Go(func() {
			pod, err := runner.Create(ctx, fmt.Sprintf("%s-%d", name, i), gpushareTemplate)
			if err != nil {
				u.note(pod, 0, err)
				return
			}
			soon, cancel := context.WithTimeout(ctx, burstPatience)
			defer cancel()
			if _, err := pod.Running(soon); err != nil {
				u.late.Go(func() { u.finish(ctx, runner, pod) })
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
