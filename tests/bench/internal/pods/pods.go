// SPDX-License-Identifier: Apache-2.0

// Package pods makes pods and observes, to the millisecond, what becomes of them. The
// times in the objects themselves are in whole seconds.
package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// Settled is how long a benchmark waits for the cluster to do something.
const Settled = 3 * time.Minute

// Anywhere returns a pod for nodes without kubelets, which the scheduler may bind to any node. It never runs.
func Anywhere(name string) *corev1.Pod {
	pod := harness.Pod(name, "")
	pod.Spec.NodeSelector = nil
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(0))
	return pod
}

// Watcher makes pods in one namespace, each with a name of its own, and observes them.
type Watcher struct {
	client    kubernetes.Interface
	namespace string
	stores    []cache.Store

	mu   sync.Mutex
	pods map[string]*Pod
}

// Watch observes the pods of a namespace until ctx ends, and with Events also when they are Started.
func Watch(ctx context.Context, client kubernetes.Interface, namespace string, events bool) (*Watcher, error) {
	w := &Watcher{client: client, namespace: namespace, pods: map[string]*Pod{}}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	pods, claims := factory.Core().V1().Pods().Informer(), factory.Resource().V1().ResourceClaims().Informer()
	w.stores = []cache.Store{pods.GetStore(), claims.GetStore()}
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.podSeen,
		UpdateFunc: func(_, obj any) { w.podSeen(obj) },
		DeleteFunc: w.podGone,
	})
	synced := []cache.InformerSynced{pods.HasSynced, claims.HasSynced}
	if events {
		told := factory.Core().V1().Events().Informer()
		_, errEvents := told.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: w.eventSeen,
			UpdateFunc: func(_, obj any) { w.eventSeen(obj) }})
		err, synced = errors.Join(err, errEvents), append(synced, told.HasSynced)
	}
	if err != nil {
		return nil, fmt.Errorf("watch the pods of namespace %s: %w", namespace, err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil, fmt.Errorf("watch the pods of namespace %s: %w", namespace, context.Cause(ctx))
	}
	return w, nil
}

// Create makes a pod. Its name must not have been used before.
func (w *Watcher) Create(ctx context.Context, object *corev1.Pod) (*Pod, error) {
	pod := &Pod{Name: object.Name, Created: time.Now(), seen: map[Moment]Seen{}}
	w.mu.Lock()
	w.pods[pod.Name] = pod
	w.mu.Unlock()
	if _, err := w.client.CoreV1().Pods(w.namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("make pod %s: %w", pod.Name, err)
	}
	return pod, nil
}

// Delete deletes a pod and waits until it is gone.
func (w *Watcher) Delete(ctx context.Context, pod *Pod) error {
	if err := w.client.CoreV1().Pods(w.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	_, err := pod.Wait(ctx, Gone)
	return err
}

// Clear deletes all pods and waits until they and all claims are gone.
func (w *Watcher) Clear(ctx context.Context) error {
	err := w.client.CoreV1().Pods(w.namespace).DeleteCollection(ctx,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, Settled, true, func(context.Context) (bool, error) {
		left := 0
		for _, store := range w.stores {
			left += len(store.ListKeys())
		}
		return left == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait until pods and claims are gone: %w", err)
	}
	return nil
}

func (w *Watcher) find(name string) *Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[name]
}

func (w *Watcher) podSeen(obj any) {
	object, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	if pod := w.find(object.Name); pod != nil {
		for _, m := range momentsOf(object) {
			pod.happened(m, object)
		}
	}
}

func (w *Watcher) podGone(obj any) {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return
	}
	if pod := w.find(name.Name); pod != nil {
		pod.happened(Gone, nil)
	}
}

func (w *Watcher) eventSeen(obj any) {
	event, ok := obj.(*corev1.Event)
	if !ok || event.InvolvedObject.Kind != "Pod" || event.Reason != "Started" {
		return
	}
	if pod := w.find(event.InvolvedObject.Name); pod != nil {
		pod.happened(Started, nil)
	}
}
