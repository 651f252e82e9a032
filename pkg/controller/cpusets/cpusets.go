// SPDX-License-Identifier: Apache-2.0

// Package cpusets tells pods that ask for CPUs of their own, in ACK's manner, why they were
// given none. Admission policies give them claims for CPUs, where the DeviceClass of the
// driver that pins containers is installed; without them the pod runs as any other.
//
// A pod may have a node before anybody here has seen it, and then it is no longer among
// those that this looks at. So what an informer says of a pod is kept until it was told.
package cpusets

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// Config is what the controller needs.
type Config struct {
	// Pods holds pods without a node, with what Keep leaves of each; Classes all
	// DeviceClasses. New adds handlers to Pods; neither must run yet, and both have to have
	// synced before the controller runs.
	Pods, Classes cache.SharedIndexInformer
	Events        *report.Reporter
}

type teller struct {
	Config

	mu sync.Mutex
	// untold are pods that lack CPUs and were not told so, by key.
	untold map[string]*corev1.Pod
}

// New returns the controller. Its keys are those of pods; it can have several workers.
func New(cfg Config) (*manager.Controller, error) {
	t := &teller{Config: cfg, untold: map[string]*corev1.Pod{}}
	work := manager.NewController("cpusets", t.reconcile)
	saw := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok || pod.Annotations[v1alpha1.AnnotationCPUSet] == "" {
			return
		}
		key := cache.MetaObjectToName(pod).String()
		t.mu.Lock()
		t.untold[key] = pod
		t.mu.Unlock()
		work.Enqueue(key)
	}
	if _, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: saw, UpdateFunc: func(_, object any) { saw(object) },
		DeleteFunc: func(object any) {
			if pod, ok := informer.Object(object).(*corev1.Pod); ok {
				cfg.Events.Forget(pod.UID)
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch the pods that ask for CPUs of their own: %w", err)
	}
	return work, nil
}

// reconcile is a manager.Reconcile; the key is that of a pod.
func (t *teller) reconcile(_ context.Context, key string) (time.Duration, error) {
	t.mu.Lock()
	pod := t.untold[key]
	delete(t.untold, key)
	t.mu.Unlock()
	if pod == nil {
		return 0, nil
	}
	why := pod.Annotations[v1alpha1.AnnotationCPUSet]
	if why == unclaimed {
		_, exists, err := t.Classes.GetStore().GetByKey(legacy.ClassCPUs)
		if err != nil {
			return 0, fmt.Errorf("look for DeviceClass %s: %w", legacy.ClassCPUs, err)
		}
		why = sayUnclaimed(exists)
	}
	t.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonCPUsNotGiven,
		"The pod runs without CPUs of its own: "+why)
	// It may have got a node meanwhile.
	if _, there, err := t.Pods.GetStore().GetByKey(key); err == nil && !there {
		t.Events.Forget(pod.UID)
	}
	return 0, nil
}
