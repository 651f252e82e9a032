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
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// Config is what the controller needs.
type Config struct {
	// Cache is asked for pods without a node, and DeviceClasses.
	Cache  *cache.Reader
	Events *report.Reporter
}

type reconciler struct {
	Config
	pods    cache.Unscheduled
	classes cache.Classes

	// untold are pods that lack CPUs and were not told so, by key.
	untold sync.Map
}

// New returns the controller. Its keys are those of pods; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := &reconciler{Config: cfg, pods: cfg.Cache.UnscheduledPods(), classes: cfg.Cache.Classes()}
	work := manager.NewController("cpusets", r.reconcile)
	r.pods.On(cache.Handler[*corev1.Pod]{
		Seen: func(pod *corev1.Pod) {
			if missing(pod) == "" {
				return
			}
			key := cache.Key(pod)
			r.untold.Store(key, pod)
			work.Enqueue(key)
		},
		Gone: func(pod *corev1.Pod) { cfg.Events.Forget(pod.UID) },
	})
	return work
}

// reconcile is a manager.Reconcile; the key is that of a pod.
func (r *reconciler) reconcile(_ context.Context, key string) (time.Duration, error) {
	untold, _ := r.untold.LoadAndDelete(key)
	pod, is := untold.(*corev1.Pod)
	if !is {
		return 0, nil
	}
	why := missing(pod)
	if why == unclaimed {
		_, exists := r.classes.Get(legacy.ClassCPUs)
		why = sayUnclaimed(exists)
	}
	r.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonCPUsNotGiven,
		"The pod runs without exclusive CPUs: "+why)
	// It may have got a node meanwhile.
	if _, there := r.pods.Get(key); !there {
		r.Events.Forget(pod.UID)
	}
	return 0, nil
}
