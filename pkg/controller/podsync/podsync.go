// SPDX-License-Identifier: Apache-2.0

// Package podsync has the kubelet sync a pod again whose claims it could not have
// prepared.
//
// The kubelet takes a pod whose NodePrepareResources failed for one that it has synced,
// and comes back to it when it syncs all pods: after 60 to 90 seconds. Most reasons pass
// within moments: the API server's node authorizer does not know yet that the claim
// belongs to the node, or the driver's plugin is being restarted. A changed annotation of
// the pod makes the kubelet sync it at once.
//
// A plugin that ends again and again is away for longer than the times at which pods are
// synced are apart by then. So the pods of a node are synced at once when its plugin is
// ready again, too.
//
// The kubelet does not say in the pod's status that it failed. What shows is that the pod
// has no sandbox yet, which is true of a slow start as well; for such a pod a sync does
// nothing but cost a write and a look.
package podsync

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// schedule says how long after it was first seen a pod is synced for the first, second, …
// time. What has not passed by its end is not about to: from then on the kubelet's own
// interval does.
var schedule = []time.Duration{
	2 * time.Second, 4 * time.Second, 6 * time.Second, 9 * time.Second, 13 * time.Second,
	20 * time.Second, 30 * time.Second, 45 * time.Second, 70 * time.Second, 100 * time.Second,
}

// apart is how long there is between two syncs of a pod at least, however late the first
// one was: the kubelet needs about a second for each.
const apart = 2 * time.Second

// Config is what the controller needs.
type Config struct {
	// Pods holds the pods that informer.StartingPods selects, through
	// informer.SlimStartingPod; Claims all claims, through informer.SlimClaim. New adds
	// handlers to Pods, which must not run yet; the controller must not run before both
	// have synced.
	Pods, Claims cache.SharedIndexInformer
	// Plugins holds the pods of the driver's node agents, which PluginSelector selects, in
	// the driver's namespace, through SlimPlugin. New adds a handler to it as well; the
	// controller works without what it knows.
	Plugins cache.SharedIndexInformer
	// Client writes the pods' annotations. Its rate bounds how many pods are synced in a
	// second.
	Client typedcorev1.PodsGetter
	Clock  clock.PassiveClock
}

// PluginSelector selects the pods of the node agents by label.
const PluginSelector = "app.kubernetes.io/component=gpu-kubelet-plugin"

// SlimPlugin is a transform for an informer of these pods.
func SlimPlugin(object any) (any, error) {
	return informer.SlimPod(object, func(pod, kept *corev1.Pod) {
		kept.Spec.NodeName, kept.Status.ContainerStatuses = pod.Spec.NodeName, pod.Status.ContainerStatuses
	})
}

type syncer struct {
	Config

	mu sync.Mutex
	// known are the pods that start, by namespace/name. That of a pod belongs to the
	// Reconcile of its key.
	known map[string]*starting
	// returned is when the plugin of a node was last seen to be ready again.
	returned map[string]time.Time
}

// starting is what is known of a pod that starts.
type starting struct {
	uid types.UID
	// first is when it was first seen without a sandbox, last when it was synced last,
	// and syncs how often it was.
	first, last time.Time
	syncs       int
}

// New returns the controller. Its keys are pods; it can have several workers.
func New(cfg Config) (*manager.Controller, error) {
	s := &syncer{Config: cfg, known: map[string]*starting{}, returned: map[string]time.Time{}}
	work := manager.NewController("podsync", s.reconcile)
	changed := func(object any) {
		if pod, ok := informer.Object(object).(*corev1.Pod); ok {
			work.Enqueue(keyOf(pod))
		}
	}
	awaits := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && informer.AwaitsClaims(pod) {
			changed(object)
		}
	}
	if _, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: awaits, DeleteFunc: changed,
		UpdateFunc: func(old, object any) {
			awaits(old)
			awaits(object)
		},
	}); err != nil {
		return nil, fmt.Errorf("watch the pods that start: %w", err)
	}
	if _, err := cfg.Plugins.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, object any) {
		before, was := old.(*corev1.Pod)
		now, is := object.(*corev1.Pod)
		if was && is && !ready(before) && ready(now) {
			s.pluginReturned(now.Spec.NodeName, changed)
		}
	}}); err != nil {
		return nil, fmt.Errorf("watch the pods of the node agents: %w", err)
	}
	return work, nil
}

// ready says whether the kubelet has registered the plugin: that is what its startup probe
// asks for.
func ready(plugin *corev1.Pod) bool {
	notReady := func(c corev1.ContainerStatus) bool { return !c.Ready }
	return len(plugin.Status.ContainerStatuses) > 0 && !slices.ContainsFunc(plugin.Status.ContainerStatuses, notReady)
}

// pluginReturned has the pods of the node looked at that start.
func (s *syncer) pluginReturned(node string, look func(pod any)) {
	s.mu.Lock()
	s.returned[node] = s.Clock.Now()
	s.mu.Unlock()
	for _, object := range s.Pods.GetStore().List() {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName == node && informer.AwaitsClaims(pod) {
			look(pod)
		}
	}
}

func keyOf(pod *corev1.Pod) string { return cache.MetaObjectToName(pod).String() }

// reconcile is a manager.Reconcile; the key is that of a pod.
func (s *syncer) reconcile(ctx context.Context, key string) (time.Duration, error) {
	object, exists, err := s.Pods.GetStore().GetByKey(key)
	if err != nil {
		return 0, err
	}
	pod, ok := object.(*corev1.Pod)
	// A kubelet that has not seen the pod yet needs no reminder.
	if !exists || !ok || !informer.AwaitsClaims(pod) || pod.Status.StartTime == nil {
		s.forget(key)
		return 0, nil
	}
	p := s.of(key, pod.UID)
	wait, due := s.next(p, pod.Spec.NodeName)
	if !due {
		return 0, nil
	}
	if wait > 0 {
		return wait, nil
	}
	// The cache of claims may be behind: what has none of the driver is looked at again.
	concerned := s.concerned(pod)
	if concerned {
		if err := s.sync(ctx, pod); err != nil {
			return 0, err
		}
	}
	if now := s.Clock.Now(); p.syncs < len(schedule) && !now.Before(p.first.Add(schedule[p.syncs])) {
		p.syncs++
	}
	p.last = s.Clock.Now()
	if concerned {
		klog.FromContext(ctx).Info("Had the kubelet sync a pod that has claims and no sandbox",
			"pod", klog.KObj(pod), "node", pod.Spec.NodeName, "after", p.last.Sub(p.first), "sync", p.syncs)
	}
	wait, _ = s.next(p, pod.Spec.NodeName)
	return wait, nil
}

// of is what is known of a pod; it begins now for one that has the name of another.
func (s *syncer) of(key string, uid types.UID) *starting {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.known[key]
	if p == nil || p.uid != uid {
		p = &starting{uid: uid, first: s.Clock.Now()}
		s.known[key] = p
	}
	return p
}

func (s *syncer) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
}

// next is in how long a pod's next sync is due; false where there is none.
func (s *syncer) next(p *starting, node string) (time.Duration, bool) {
	s.mu.Lock()
	returned := s.returned[node]
	s.mu.Unlock()
	var due time.Time
	if p.syncs < len(schedule) {
		due = p.first.Add(schedule[p.syncs])
	}
	if returned.After(p.first) && returned.After(p.last) && (due.IsZero() || returned.Before(due)) {
		due = returned
	}
	if due.IsZero() {
		return 0, false
	}
	if earliest := p.last.Add(apart); !p.last.IsZero() && due.Before(earliest) {
		due = earliest
	}
	return due.Sub(s.Clock.Now()), true
}

// concerned says whether a claim of the pod was allocated GPUs of the driver.
func (s *syncer) concerned(pod *corev1.Pod) bool {
	for name := range resourceclaim.PodClaims(pod) {
		object, exists, err := s.Claims.GetStore().GetByKey(cache.NewObjectName(pod.Namespace, name).String())
		if err != nil || !exists {
			continue
		}
		if claim, ok := object.(*resourceapi.ResourceClaim); ok && informer.AllocatedFrom(claim) != "" {
			return true
		}
	}
	return false
}

// sync has the kubelet sync the pod.
func (s *syncer) sync(ctx context.Context, pod *corev1.Pod) error {
	if err := Touch(ctx, s.Client, pod, s.Clock.Now()); err != nil {
		return fmt.Errorf("have the kubelet of node %s sync pod %s, which has claims and no sandbox: %w",
			pod.Spec.NodeName, klog.KObj(pod), err)
	}
	return nil
}

// Touch changes the pod's annotation, of the pod with this UID and no other of its name, so
// that who watches pods looks at it again. A pod that is gone is no error.
func Touch(ctx context.Context, client typedcorev1.PodsGetter, pod *corev1.Pod, now time.Time) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"annotations": map[string]string{v1alpha1.AnnotationSyncRequested: now.UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return fmt.Errorf("write a patch: %w", err)
	}
	options := metav1.PatchOptions{FieldManager: v1alpha1.ControllerName}
	_, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone, or another one has its name.
		return nil
	}
	if err != nil {
		return fmt.Errorf("change its annotation %s: %w", v1alpha1.AnnotationSyncRequested, err)
	}
	return nil
}
