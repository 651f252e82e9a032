// Package templates makes the ResourceClaimTemplates that pods with a legacy request
// refer to, each in its pod's namespace, and removes those that no pod has needed
// for a while.
//
// All there is to know of a template is in its name (pkg/compat/legacy), so nothing
// is lost with the process: what is there is pods and templates.
package templates

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/caches"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/loop"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// Reasons of a pod's Events.
const (
	// ReasonNotMade: the template could not be made, and the pod waits for it.
	ReasonNotMade = "GPUClaimTemplateNotMade"
	// ReasonUnknown: the name of the template says nothing that this version knows.
	ReasonUnknown = "GPUClaimTemplateUnknown"
)

// Selector is of the pods and the templates that the loop needs to know of.
var Selector = labels.Set{legacy.Label: "true"}.String()

// Config is what the loop needs.
type Config struct {
	// Pods and Templates hold the objects that Selector selects, pods as Slim leaves
	// them. New adds an index and handlers to them; they must not run yet, and the
	// loop must not run before they have synced.
	Pods, Templates cache.SharedIndexInformer
	Client          typedresourcev1.ResourceV1Interface
	Events          *report.Reporter
	// Grace is how long a template stays that no pod needs.
	Grace time.Duration
	Clock clock.PassiveClock
}

// Slim is a transform for pods: it leaves what the loop reads.
func Slim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		Spec:       corev1.PodSpec{ResourceClaims: pod.Spec.ResourceClaims},
		Status:     corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}

type keeper struct {
	Config

	mu sync.Mutex
	// since is when a template was first seen without pods, by key.
	since map[string]time.Time
}

// byTemplate is the index of pods by the key of the template that they need.
const byTemplate = "template"

// New returns the loop. Its keys are those of templates; it can have several workers.
func New(cfg Config) (*loop.Loop, error) {
	k := &keeper{Config: cfg, since: map[string]time.Time{}}
	work := loop.New("templates", k.sync)
	if err := cfg.Pods.AddIndexers(cache.Indexers{byTemplate: needed}); err != nil {
		return nil, fmt.Errorf("index the pods by their templates: %w", err)
	}
	podChanged := func(object any) {
		keys, _ := needs(object)
		for _, key := range keys {
			work.Changed(key)
		}
	}
	if _, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: podChanged, DeleteFunc: podChanged,
		// Once a pod has ended it needs its template no more.
		UpdateFunc: func(_, object any) { podChanged(object) },
	}); err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	changed := func(object any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			work.Changed(key)
		}
	}
	if _, err := cfg.Templates.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, DeleteFunc: changed}); err != nil {
		return nil, fmt.Errorf("watch the ResourceClaimTemplates: %w", err)
	}
	return work, nil
}

// needs lists the keys of the templates that a pod names, and whether it has ended.
func needs(object any) (keys []string, ended bool) {
	pod, ok := caches.Object(object).(*corev1.Pod)
	if !ok {
		return nil, false
	}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimTemplateName != nil && legacy.IsName(*claim.ResourceClaimTemplateName) {
			keys = append(keys, cache.NewObjectName(pod.Namespace, *claim.ResourceClaimTemplateName).String())
		}
	}
	return keys, pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// needed is a cache.IndexFunc.
func needed(object any) ([]string, error) {
	keys, ended := needs(object)
	if ended {
		return nil, nil
	}
	return keys, nil
}

// sync is a loop.Sync.
func (k *keeper) sync(ctx context.Context, key string) (time.Duration, error) {
	pods, err := k.Pods.GetIndexer().ByIndex(byTemplate, key)
	if err != nil {
		return 0, fmt.Errorf("look for the pods that need ResourceClaimTemplate %s: %w", key, err)
	}
	object, exists, err := k.Templates.GetStore().GetByKey(key)
	if err != nil {
		return 0, fmt.Errorf("look for ResourceClaimTemplate %s: %w", key, err)
	}
	template, _ := object.(*resourceapi.ResourceClaimTemplate)
	switch {
	case len(pods) > 0:
		k.usedAgain(key)
		if exists {
			return 0, nil
		}
		return 0, k.make(ctx, key, pods)
	case !exists || template == nil || template.Labels[compat.ManagedByLabel] != compat.Name:
		k.usedAgain(key)
		return 0, nil
	}
	if left := k.Grace - k.unused(key); left > 0 {
		return left, nil
	}
	return 0, k.remove(ctx, template)
}

// unused is for how long no pod has needed the template.
func (k *keeper) unused(key string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.Clock.Now()
	if _, known := k.since[key]; !known {
		k.since[key] = now
	}
	return now.Sub(k.since[key])
}

func (k *keeper) usedAgain(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.since, key)
}

// make makes the template. Where the cache was behind, its next change brings sync
// back.
func (k *keeper) make(ctx context.Context, key string, pods []any) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return fmt.Errorf("key of a ResourceClaimTemplate: %w", err)
	}
	request, err := legacy.ParseName(name)
	if err != nil {
		k.tell(pods, ReasonUnknown, fmt.Sprintf("The pod's claim cannot be made: %v. Delete the pod and have it made again; if that does not help, the admission policies and gpu-compat-controller are of different versions.", err))
		return nil
	}
	template := request.Template(namespace)
	template.Labels[compat.ManagedByLabel] = compat.Name
	_, err = k.Client.ResourceClaimTemplates(namespace).Create(ctx, template, metav1.CreateOptions{FieldManager: compat.Name})
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		k.tell(pods, ReasonNotMade, fmt.Sprintf("ResourceClaimTemplate %s could not be made, it is tried again: %v", name, err))
		return fmt.Errorf("make ResourceClaimTemplate %s for a pod that waits for it: %w", key, err)
	}
	klog.FromContext(ctx).V(2).Info("Made a ResourceClaimTemplate", "template", klog.KRef(namespace, name))
	k.clear(pods)
	return nil
}

func (k *keeper) remove(ctx context.Context, template *resourceapi.ResourceClaimTemplate) error {
	ref := klog.KObj(template)
	// The template as it was looked at, and no other of that name.
	err := k.Client.ResourceClaimTemplates(template.Namespace).Delete(ctx, template.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &template.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("remove ResourceClaimTemplate %s, which no pod needs: %w", ref, err)
	}
	klog.FromContext(ctx).V(2).Info("Removed a ResourceClaimTemplate that no pod needs", "template", ref)
	return nil
}

func (k *keeper) tell(pods []any, reason, message string) {
	for _, object := range pods {
		if pod, ok := object.(*corev1.Pod); ok {
			k.Events.Warn(corev1.ObjectReference{
				APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			}, reason, message)
		}
	}
}

func (k *keeper) clear(pods []any) {
	for _, object := range pods {
		if pod, ok := object.(*corev1.Pod); ok {
			k.Events.Forget(pod.UID)
		}
	}
}
