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
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
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

// unclaimed is the note on a pod to which the policies would have given a claim if the DeviceClass had existed.
const unclaimed = "unclaimed"

// missing returns why none of a pod's containers has a claim for CPUs. It is empty if one has, or if the policy that
// gives claims has not seen the pod.
func missing(pod *corev1.Pod) string {
	if _, asks := pod.Annotations[v1alpha1.AnnotationCPUSet]; !asks {
		return ""
	}
	could := false
	for _, c := range pod.Spec.Containers {
		if slices.ContainsFunc(c.Resources.Claims, legacy.IsForCPUs) {
			return ""
		}
		could = could || wholeCPUs(c.Resources)
	}
	switch burst := pod.Annotations[ack.AnnotationBurst]; {
	case burst == "eci" || burst == "eci_only":
		return fmt.Sprintf("by its annotation %s: %s it may run on a virtual node, which prepares no ResourceClaims",
			ack.AnnotationBurst, burst)
	case !could:
		return fmt.Sprintf("no container has a CPU limit that is a whole number from 1 to %d and the same as its request",
			legacy.MostCPUs)
	default:
		return unclaimed
	}
}

// wholeCPUs reports whether a container requests CPUs as one with CPUs of its own must.
func wholeCPUs(r corev1.ResourceRequirements) bool {
	limit, limited := r.Limits[corev1.ResourceCPU]
	request, requested := r.Requests[corev1.ResourceCPU]
	n := limit.Value()
	return limited && requested && limit.Cmp(request) == 0 && limit.CmpInt64(n) == 0 && n >= 1 && n <= legacy.MostCPUs
}

func sayUnclaimed(classExists bool) string {
	if classExists {
		// The class may have been there: the policy uses the marker that the controller makes.
		return fmt.Sprintf("%s had not yet seen DeviceClass %s when it was created, and it cannot be given a claim "+
			"afterwards: create it again", v1alpha1.ControllerName, legacy.ClassCPUs)
	}
	return fmt.Sprintf("the cluster has no DeviceClass %s. Its administrator installs dra-driver-cpu of kubernetes-sigs, "+
		"which pins containers to CPUs", legacy.ClassCPUs)
}
