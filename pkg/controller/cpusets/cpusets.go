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

type teller struct {
	Config
	pods    cache.Unscheduled
	classes cache.Classes

	mu sync.Mutex
	// untold are pods that lack CPUs and were not told so, by key.
	untold map[string]*corev1.Pod
}

// New returns the controller. Its keys are those of pods; it can have several workers.
func New(cfg Config) *manager.Controller {
	t := &teller{Config: cfg, pods: cfg.Cache.UnscheduledPods(), classes: cfg.Cache.Classes(),
		untold: map[string]*corev1.Pod{}}
	work := manager.NewController("cpusets", t.reconcile)
	t.pods.On(cache.Handler[*corev1.Pod]{
		Seen: func(pod *corev1.Pod) {
			if missing(pod) == "" {
				return
			}
			key := cache.Key(pod)
			t.mu.Lock()
			t.untold[key] = pod
			t.mu.Unlock()
			work.Enqueue(key)
		},
		Gone: func(pod *corev1.Pod) { cfg.Events.Forget(pod.UID) },
	})
	return work
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
	why := missing(pod)
	if why == unclaimed {
		_, exists := t.classes.Get(legacy.ClassCPUs)
		why = sayUnclaimed(exists)
	}
	t.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonCPUsNotGiven,
		"The pod runs without exclusive CPUs: "+why)
	// It may have got a node meanwhile.
	if _, there := t.pods.Get(key); !there {
		t.Events.Forget(pod.UID)
	}
	return 0, nil
}
