// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

// How many pods wait for a template of their own: one after the other, and at once.
const (
	inTurn = 50
	atOnce = 100
)

// measureTemplates measures how long a pod waits for its claim's template, from when
// its creation returned to when a watch shows the template. The pods go to no node.
func measureTemplates(ctx context.Context, client kubernetes.Interface) (err error) {
	ns, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-templates-"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a namespace: %w", err)
	}
	defer func() {
		err = errors.Join(err, client.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), ns.Name,
			metav1.DeleteOptions{}))
	}()
	templates, err := client.ResourceV1().ResourceClaimTemplates(ns.Name).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch the templates of namespace %s: %w", ns.Name, err)
	}
	defer templates.Stop()
	m := templateTimes{client: client, namespace: ns.Name, seen: make(chan seen, inTurn+atOnce),
		created: map[string]time.Time{}}
	go m.watch(templates.ResultChan())

	var turns stats.Sample
	for i := range inTurn {
		if err := m.create(ctx, 1+i); err != nil {
			return err
		}
		took, err := m.next(ctx)
		if err != nil {
			return err
		}
		turns = append(turns, took)
	}
	for i := range atOnce {
		if err := m.create(ctx, 1+inTurn+i); err != nil {
			return err
		}
	}
	var burst stats.Sample
	for range atOnce {
		took, err := m.next(ctx)
		if err != nil {
			return err
		}
		burst = append(burst, took)
	}
	fmt.Printf("\n| from the pod to its template, p50 / p99 / max | |\n|---|---|\n| %d pods in turn | %s |\n| %d pods "+
		"at once | %s |\n",
		inTurn, turns.Summary(0.5, 0.99, 1), atOnce, burst.Summary(0.5, 0.99, 1))
	return nil
}

type templateTimes struct {
	client    kubernetes.Interface
	namespace string
	seen      chan seen
	created   map[string]time.Time // by the template's name
}

// seen is when a template was seen first.
type seen struct {
	name string
	at   time.Time
}

func (m *templateTimes) watch(events <-chan watch.Event) {
	defer close(m.seen)
	for event := range events {
		if template, ok := event.Object.(*resourceapi.ResourceClaimTemplate); ok && event.Type == watch.Added {
			m.seen <- seen{template.Name, time.Now()}
		}
	}
}

func (m *templateTimes) create(ctx context.Context, gib int) error {
	p := pod(1, corev1.ResourceList{ack.ResourceMemory: *resource.NewQuantity(int64(gib), resource.DecimalSI)})
	p.Name, p.Spec.NodeSelector = fmt.Sprintf("p%d", gib), map[string]string{"gpu.aliyun.com/no-such-node": "true"}
	made, err := m.client.CoreV1().Pods(m.namespace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	if len(made.Spec.ResourceClaims) != 1 || made.Spec.ResourceClaims[0].ResourceClaimTemplateName == nil {
		return fmt.Errorf("pod %s was not converted", made.Name)
	}
	m.created[*made.Spec.ResourceClaims[0].ResourceClaimTemplateName] = time.Now()
	return nil
}

// next waits for the next template, and returns how long its pod has waited for it.
func (m *templateTimes) next(ctx context.Context) (time.Duration, error) {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-limit.Done():
		return 0, fmt.Errorf("wait for a template: %w", limit.Err())
	case s, open := <-m.seen:
		if !open {
			return 0, errors.New("the watch of the templates ended")
		}
		// It may be seen before the pod's creation has returned.
		return max(0, s.at.Sub(m.created[s.name])), nil
	}
}
