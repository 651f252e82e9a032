// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

// binder makes pods and observes when they are bound to a node. They never run:
// the nodes have no kubelet.
type binder struct {
	client kubernetes.Interface
	pods   cache.SharedIndexInformer
	claims cache.SharedIndexInformer
	made   int

	mu    sync.Mutex
	bound map[string]chan time.Time
}

func newBinder(ctx context.Context, client kubernetes.Interface) (*binder, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	b := &binder{
		client: client, bound: map[string]chan time.Time{},
		pods: factory.Core().V1().Pods().Informer(), claims: factory.Resource().V1().ResourceClaims().Informer(),
	}
	if _, err := b.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    b.seen,
		UpdateFunc: func(_, obj any) { b.seen(obj) },
	}); err != nil {
		return nil, fmt.Errorf("watch the pods of namespace %s: %w", namespace, err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), b.pods.HasSynced, b.claims.HasSynced) {
		return nil, fmt.Errorf("watch the pods of namespace %s: %w", namespace, context.Cause(ctx))
	}
	return b, nil
}

func (b *binder) seen(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if bound, ok := b.bound[pod.Name]; ok {
		bound <- time.Now()
		delete(b.bound, pod.Name)
	}
}

// names reserves names for pods.
func (b *binder) names(count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprintf("pod-%d", b.made)
		b.made++
	}
	return out
}

// kind is what pods of a kind have: a claim from the template, or none where that is empty.
type kind struct {
	template             string
	nodeSelector, labels map[string]string
}

// create makes a pod.
func (b *binder) create(ctx context.Context, name string, k kind) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: k.labels},
		Spec: corev1.PodSpec{
			NodeSelector:                  k.nodeSelector,
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			AutomountServiceAccountToken:  ptr.To(false),
			Containers:                    []corev1.Container{{Name: "main", Image: "none.invalid/never-run"}},
		},
	}
	if k.template != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: &k.template}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "device"}}
	}
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make pod %s: %w", name, err)
	}
	return nil
}

// bind makes a pod, waits until it is bound, and says when each was.
func (b *binder) bind(ctx context.Context, name string, k kind) (created, bound time.Time, err error) {
	seen := make(chan time.Time, 1)
	b.mu.Lock()
	b.bound[name] = seen
	b.mu.Unlock()
	created = time.Now()
	if err := b.create(ctx, name, k); err != nil {
		return created, bound, err
	}
	select {
	case bound = <-seen:
		return created, bound, nil
	case <-ctx.Done():
		return created, bound, fmt.Errorf("wait until pod %s is bound: %w", name, context.Cause(ctx))
	}
}

// burst is what came of pods that were made as fast as the API server took
// them.
type burst struct {
	perSecond float64
	latency   stats.Sample
}

var errNotBound = errors.New("not bound in time: see the scheduler's log")

// burst makes that many pods at once, of these kinds in turn.
func (b *binder) burst(ctx context.Context, count int, kinds ...kind) (burst, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodes.Settled, errNotBound)
	defer cancel()
	names := b.names(count)
	latency := make(stats.Sample, count)
	ends := make([]time.Time, count)
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i, name := range names {
		group.Go(func() error {
			created, end, err := b.bind(ctx, name, kinds[i%len(kinds)])
			latency[i], ends[i] = end.Sub(created), end
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return burst{}, err
	}
	last := slices.MaxFunc(ends, time.Time.Compare)
	return burst{perSecond: float64(count) / last.Sub(start).Seconds(), latency: latency}, nil
}

// oneByOne makes pods, each when the one before is bound, of these kinds in turn.
func (b *binder) oneByOne(ctx context.Context, count int, kinds ...kind) (stats.Sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, nodes.Settled, errNotBound)
	defer cancel()
	var latency stats.Sample
	for i, name := range b.names(count) {
		created, bound, err := b.bind(ctx, name, kinds[i%len(kinds)])
		if err != nil {
			return nil, err
		}
		latency = append(latency, bound.Sub(created))
	}
	return latency, nil
}

// clear deletes all pods and waits until their claims are gone too.
func (b *binder) clear(ctx context.Context) error {
	err := b.client.CoreV1().Pods(namespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, nodes.Settled, true, func(context.Context) (bool, error) {
		return len(b.pods.GetStore().ListKeys()) == 0 && len(b.claims.GetStore().ListKeys()) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait until pods and claims are gone: %w", err)
	}
	return nil
}
