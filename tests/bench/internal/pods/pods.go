// SPDX-License-Identifier: Apache-2.0

// Package pods makes pods and observes, to the millisecond, when they run. The
// times in the objects themselves are in whole seconds.
package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// Image is in every node of the test cluster. It stays until it is told to stop.
const Image = "localhost/gpu-probe:latest"

// Runner makes pods in one namespace.
type Runner struct {
	client    kubernetes.Interface
	namespace string
	node      string

	mu   sync.Mutex
	pods map[string]*Pod
}

// Pod is a pod that was made.
type Pod struct {
	Name    string
	created time.Time
	// scheduled: the pod has a node; started: the kubelet said that the
	// container was started; running: the pod's status says so, which the
	// kubelet finds out once a second.
	scheduled, started, running, gone moment
}

// moment is when something was first seen.
type moment struct {
	once sync.Once
	at   time.Time
	seen chan struct{}
}

func (m *moment) happened() {
	m.once.Do(func() {
		m.at = time.Now()
		close(m.seen)
	})
}

// New returns a Runner of pods on one node, which observes until ctx ends.
func New(ctx context.Context, client kubernetes.Interface, namespace, node string) (*Runner, error) {
	r := &Runner{client: client, namespace: namespace, node: node, pods: map[string]*Pod{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	podsInformer, events := factory.Core().V1().Pods().Informer(), factory.Core().V1().Events().Informer()
	_, errPods := podsInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    r.podSeen,
		UpdateFunc: func(_, obj any) { r.podSeen(obj) },
		DeleteFunc: r.podGone,
	})
	_, errEvents := events.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    r.eventSeen,
		UpdateFunc: func(_, obj any) { r.eventSeen(obj) },
	})
	if err := errors.Join(errPods, errEvents); err != nil {
		return nil, fmt.Errorf("watch the pods of namespace %s: %w", namespace, err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), podsInformer.HasSynced, events.HasSynced) {
		return nil, fmt.Errorf("watch the pods of namespace %s: %w", namespace, context.Cause(ctx))
	}
	return r, nil
}

// Create makes a pod with a claim made from the template, or without a claim
// if template is empty. Its name must not have been used before.
func (r *Runner) Create(ctx context.Context, name, template string) (*Pod, error) {
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			// To this node, but through the scheduler.
			NodeSelector:                  map[string]string{corev1.LabelHostname: r.node},
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To(int64(2)),
			AutomountServiceAccountToken:  ptr.To(false),
			Containers:                    []corev1.Container{{Name: "main", Image: Image, ImagePullPolicy: corev1.PullNever}},
		},
	}
	if template != "" {
		object.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: &template}}
		object.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "device"}}
	}
	pod := &Pod{Name: name, created: time.Now()}
	for _, m := range []*moment{&pod.scheduled, &pod.started, &pod.running, &pod.gone} {
		m.seen = make(chan struct{})
	}
	r.mu.Lock()
	r.pods[name] = pod
	r.mu.Unlock()
	if _, err := r.client.CoreV1().Pods(r.namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("make pod %s: %w", name, err)
	}
	return pod, nil
}

// Delete deletes a pod and waits until it is gone.
func (r *Runner) Delete(ctx context.Context, pod *Pod) error {
	err := r.client.CoreV1().Pods(r.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return pod.gone.wait(ctx, pod.Name, "be gone")
}

// Scheduled waits until the pod has a node and says how long after its creation
// that was.
func (p *Pod) Scheduled(ctx context.Context) (time.Duration, error) {
	return p.scheduled.since(ctx, p, "have a node")
}

// Running waits until the pod's status says that it runs and says how long
// after its creation that was.
func (p *Pod) Running(ctx context.Context) (time.Duration, error) {
	return p.running.since(ctx, p, "run")
}

// Started waits until the kubelet reports that the pod's container was started
// and says how long after the pod's creation that was.
func (p *Pod) Started(ctx context.Context) (time.Duration, error) {
	return p.started.since(ctx, p, "have its container started")
}

func (m *moment) since(ctx context.Context, p *Pod, what string) (time.Duration, error) {
	if err := m.wait(ctx, p.Name, what); err != nil {
		return 0, err
	}
	return m.at.Sub(p.created), nil
}

func (m *moment) wait(ctx context.Context, pod, what string) error {
	select {
	case <-m.seen:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for pod %s to %s: %w", pod, what, context.Cause(ctx))
	}
}

func (r *Runner) find(name string) *Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[name]
}

func (r *Runner) podSeen(obj any) {
	object, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	pod := r.find(object.Name)
	if pod == nil {
		return
	}
	if object.Spec.NodeName != "" {
		pod.scheduled.happened()
	}
	if object.Status.Phase == corev1.PodRunning {
		pod.running.happened()
	}
}

func (r *Runner) podGone(obj any) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	if name, err := cache.ParseObjectName(key); err == nil {
		if pod := r.find(name.Name); pod != nil {
			pod.gone.happened()
		}
	}
}

func (r *Runner) eventSeen(obj any) {
	event, ok := obj.(*corev1.Event)
	if !ok || event.InvolvedObject.Kind != "Pod" {
		return
	}
	if pod := r.find(event.InvolvedObject.Name); pod != nil && event.Reason == "Started" {
		pod.started.happened()
	}
}
