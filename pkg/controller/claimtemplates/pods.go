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
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// tellLag tells how long the oldest of the pods had waited when a template was made. Both times are by the clock of the
// API server.
func (r *reconciler) tellLag(pods []*corev1.Pod, made metav1.Time) {
	if r.Lag == nil || len(pods) == 0 {
		return
	}
	oldest := pods[0].CreationTimestamp
	for _, pod := range pods {
		if pod.CreationTimestamp.Before(&oldest) {
			oldest = pod.CreationTimestamp
		}
	}
	if !oldest.IsZero() {
		r.Lag(made.Sub(oldest.Time))
	}
}

// handler has the controller called for the templates of pods that come, change or go.
func (r *reconciler) handler(work *manager.Controller) cache.Handler[*corev1.Pod] {
	came := func(pod *corev1.Pod) {
		for _, key := range podstate.NamedTemplates(pod) {
			if !r.isSettled(key) {
				work.Enqueue(key)
			}
		}
	}
	// Many pods of one template may end at about the same time.
	went := func(pod *corev1.Pod) {
		for _, key := range podstate.NamedTemplates(pod) {
			work.EnqueueAfter(key, min(r.Grace, deletionBatch))
		}
	}
	return cache.Handler[*corev1.Pod]{
		Seen: came,
		Changed: func(before, after *corev1.Pod) {
			switch {
			case !slices.Equal(podstate.NamedTemplates(before), podstate.NamedTemplates(after)):
				went(before)
				came(after)
			case gpuclaim.Ended(after) && !gpuclaim.Ended(before):
				// It needs its template no more.
				went(after)
			case before.ResourceVersion == after.ResourceVersion:
				// A resync.
				came(after)
			}
		},
		Gone: func(pod *corev1.Pod) {
			r.Events.Forget(pod.UID)
			went(pod)
		},
	}
}

// deletionBatch is for how long ends of pods are collected.
const deletionBatch = time.Second

// podsOf returns the pods, each once, that the caches know to need a template.
func (r *reconciler) podsOf(key string) []*corev1.Pod {
	pods := podstate.ByUID(r.unbound.WithTemplate(key))
	maps.Copy(pods, podstate.ByUID(r.pods.WithTemplate(key)))
	return slices.Collect(maps.Values(pods))
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
func (r *reconciler) isNeeded(ctx context.Context, template *resourceapi.ResourceClaimTemplate) (bool, error) {
	now := r.Clock.Now()
	r.mu.Lock()
	maps.DeleteFunc(r.live, func(_ string, l listed) bool { return now.Sub(l.at) >= listedFor })
	last, known := r.live[template.Namespace]
	r.mu.Unlock()
	if known {
		return last.keys[cache.Key(template)], nil
	}
	list := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return r.Live.Pods(template.Namespace).List(ctx, options)
	}))
	found := listed{at: now, keys: map[string]bool{}}
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("among the pods is a %T", object)
		}
		for _, key := range podstate.Templates(pod) {
			found.keys[key] = true
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("look whether a pod needs ResourceClaimTemplate %s before it is removed: %w",
			klog.KObj(template), err)
	}
	r.mu.Lock()
	r.live[template.Namespace] = found
	r.mu.Unlock()
	return found.keys[cache.Key(template)], nil
}

// tell tells the pods, and remembers it for as long as they are there.
func (r *reconciler) tell(pods []*corev1.Pod, reason, message string) {
	for _, pod := range pods {
		of := report.Pod(pod.Namespace, pod.Name, pod.UID)
		of.ResourceVersion = pod.ResourceVersion
		r.Events.Warn(of, reason, message)
		// Its end may have been seen meanwhile.
		if !isIn(r.pods.Objects, pod) && !isIn(r.unbound.Objects, pod) {
			r.Events.Forget(pod.UID)
		}
	}
}

func isIn(pods *cache.Objects[*corev1.Pod], pod *corev1.Pod) bool {
	there, exists := pods.Get(cache.Key(pod))
	return exists && there.UID == pod.UID
}

func (r *reconciler) clear(pods []*corev1.Pod) {
	for _, pod := range pods {
		r.Events.Forget(pod.UID)
	}
}
