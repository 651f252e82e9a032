// SPDX-License-Identifier: Apache-2.0

package claimtemplates

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// Slim is a transform for pods: it leaves what the controller reads.
func Slim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp},
		Spec:   corev1.PodSpec{ResourceClaims: pod.Spec.ResourceClaims},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}

// tellLag tells how long the oldest of the pods has waited.
func (k *keeper) tellLag(pods []*corev1.Pod) {
	if k.Lag == nil || len(pods) == 0 {
		return
	}
	oldest := pods[0].CreationTimestamp
	for _, pod := range pods {
		if pod.CreationTimestamp.Before(&oldest) {
			oldest = pod.CreationTimestamp
		}
	}
	if !oldest.IsZero() {
		k.Lag(k.Clock.Since(oldest.Time))
	}
}

// byTemplate is the index of pods by the key of the template that they need.
const byTemplate = "template"

// watch has the controller called for the templates of pods that come, change or go.
func (k *keeper) watch(pods cache.SharedIndexInformer, work *manager.Controller) error {
	if err := pods.AddIndexers(cache.Indexers{byTemplate: needed}); err != nil {
		return fmt.Errorf("index the pods by their templates: %w", err)
	}
	came := func(object any) {
		keys, _ := needs(object)
		for _, key := range keys {
			if !k.isSettled(key) {
				work.Enqueue(key)
			}
		}
	}
	// Many pods of one template may end at about the same time.
	went := func(object any) {
		keys, _ := needs(object)
		for _, key := range keys {
			work.EnqueueAfter(key, min(k.Grace, deletionBatch))
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: came,
		UpdateFunc: func(old, object any) {
			before, hadEnded := needs(old)
			after, hasEnded := needs(object)
			switch {
			case !slices.Equal(before, after):
				went(old)
				came(object)
			case hasEnded && !hadEnded:
				// It needs its template no more.
				went(object)
			case isResync(old, object):
				came(object)
			}
		},
		DeleteFunc: func(object any) {
			if pod, ok := informer.Object(object).(*corev1.Pod); ok {
				k.Events.Forget(pod.UID)
			}
			went(object)
		},
	}); err != nil {
		return fmt.Errorf("watch the pods: %w", err)
	}
	return nil
}

// deletionBatch is for how long ends of pods are collected.
const deletionBatch = time.Second

func isResync(old, object any) bool {
	before, ok := old.(*corev1.Pod)
	after, is := object.(*corev1.Pod)
	return ok && is && before.ResourceVersion == after.ResourceVersion
}

// needs lists the keys of the templates that a pod names, and whether it has ended.
func needs(object any) (keys []string, ended bool) {
	pod, ok := informer.Object(object).(*corev1.Pod)
	if !ok {
		return nil, false
	}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimTemplateName != nil && legacy.IsName(*claim.ResourceClaimTemplateName) {
			keys = append(keys, cache.NewObjectName(pod.Namespace, *claim.ResourceClaimTemplateName).String())
		}
	}
	return keys, deviceplugin.Ended(pod)
}

// needed is a cache.IndexFunc.
func needed(object any) ([]string, error) {
	keys, ended := needs(object)
	if ended {
		return nil, nil
	}
	return keys, nil
}

// podsOf returns the pods, each once, that the caches know to need a template.
func (k *keeper) podsOf(key string) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	there := map[types.UID]bool{}
	for _, informer := range []cache.SharedIndexInformer{k.Pods, k.Unbound} {
		objects, err := informer.GetIndexer().ByIndex(byTemplate, key)
		if err != nil {
			return nil, fmt.Errorf("look for the pods that need ResourceClaimTemplate %s: %w", key, err)
		}
		for _, object := range objects {
			pod, ok := object.(*corev1.Pod)
			if ok && !there[pod.UID] {
				there[pod.UID] = true
				pods = append(pods, pod)
			}
		}
	}
	return pods, nil
}

// listed are the keys of the templates that pods of a namespace needed at some moment.
type listed struct {
	at   time.Time
	keys map[string]bool
}

// listedFor is for how long they are gone by: as many templates as become unneeded together
// make one list of the namespace's pods, and not one each.
const listedFor = time.Second

// isNeeded asks the API server whether a pod that has not ended names the template.
func (k *keeper) isNeeded(ctx context.Context, template *resourceapi.ResourceClaimTemplate) (bool, error) {
	now := k.Clock.Now()
	k.mu.Lock()
	maps.DeleteFunc(k.live, func(_ string, l listed) bool { return now.Sub(l.at) >= listedFor })
	last, known := k.live[template.Namespace]
	k.mu.Unlock()
	if known {
		return last.keys[keyOf(template)], nil
	}
	list := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return k.Live.Pods(template.Namespace).List(ctx, options)
	}))
	found := listed{at: now, keys: map[string]bool{}}
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		keys, err := needed(object)
		for _, key := range keys {
			found.keys[key] = true
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look whether a pod needs ResourceClaimTemplate %s before it is removed: %w",
			klog.KObj(template), err)
	}
	k.mu.Lock()
	k.live[template.Namespace] = found
	k.mu.Unlock()
	return found.keys[keyOf(template)], nil
}

// tell tells the pods, and remembers it for as long as they are there.
func (k *keeper) tell(pods []*corev1.Pod, reason, message string) {
	for _, pod := range pods {
		of := report.Pod(pod.Namespace, pod.Name, pod.UID)
		of.ResourceVersion = pod.ResourceVersion
		k.Events.Warn(of, reason, message)
		// Its end may have been seen meanwhile.
		if !isIn(k.Pods, pod) && !isIn(k.Unbound, pod) {
			k.Events.Forget(pod.UID)
		}
	}
}

func isIn(pods cache.SharedIndexInformer, pod *corev1.Pod) bool {
	object, exists, err := pods.GetStore().Get(pod)
	there, ok := object.(*corev1.Pod)
	return err == nil && exists && ok && there.UID == pod.UID
}

func (k *keeper) clear(pods []*corev1.Pod) {
	for _, pod := range pods {
		k.Events.Forget(pod.UID)
	}
}
