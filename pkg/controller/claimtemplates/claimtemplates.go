// SPDX-License-Identifier: Apache-2.0

// Package claimtemplates makes the ResourceClaimTemplates that pods with a legacy request
// refer to, each in its pod's namespace, and removes those that no pod has needed
// for a while.
//
// All there is to know of a template is in its name (pkg/legacy), so nothing
// is lost with the process: what is there is pods and templates. A template of the
// controller's own that is not what its name says – one of an earlier version, as a
// template cannot be changed – is created again.
package claimtemplates

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// When a template is looked at again of which no change may be seen.
const (
	recheckOwn     = time.Second // on its way to be removed
	recheckForeign = time.Minute
)

// Config is what the controller needs.
type Config struct {
	// Cache is asked for converted pods, pods without a node, whatever their labels, and the
	// templates.
	Cache  *cache.Reader
	Client typedresourcev1.ResourceV1Interface
	// Live is asked for the pods of a namespace before a template is removed: anybody
	// who may change a pod can take off the label by which the cache has it.
	Live   typedcorev1.PodsGetter
	Events *report.Reporter
	// Grace is how long a template stays that no pod needs.
	Grace time.Duration
	Clock clock.PassiveClock
	// Lag, if set, is told, of a template that was made for pods, how long the oldest of
	// them has existed.
	Lag func(time.Duration)
	// Beforehand, if set, is called with the pods for which a template is about to be made: none of them comes to the
	// scheduler before.
	Beforehand func(context.Context, []*corev1.Pod)
}

type keeper struct {
	Config
	pods      cache.Converted
	unbound   cache.Unscheduled
	templates cache.Templates

	// unused is for how long a template has been seen without pods, by key.
	unused *seen.Since[string]

	mu sync.Mutex
	// altered are templates that the API server stored otherwise than they were sent,
	// by key: an admission policy or webhook of the cluster wants them so.
	altered map[string]types.UID
	// settled are templates that are as pods need them, by key: further pods that name
	// them change nothing.
	settled map[string]types.UID
	// live is what was listed last, by namespace.
	live map[string]listed
}

// New returns the controller. Its keys are those of templates; it can have several workers.
func New(cfg Config) *manager.Controller {
	k := newKeeper(cfg)
	work := manager.NewController("claimtemplates", k.sync)
	k.pods.On(k.handler(work))
	k.unbound.On(k.handler(work))
	changed := func(template *resourceapi.ResourceClaimTemplate) { work.Enqueue(keyOf(template)) }
	k.templates.On(cache.Handler[*resourceapi.ResourceClaimTemplate]{
		Seen: changed, Changed: func(_, _ *resourceapi.ResourceClaimTemplate) {}, Gone: changed,
	})
	return work
}

func newKeeper(cfg Config) *keeper {
	return &keeper{
		Config: cfg, pods: cfg.Cache.ConvertedPods(), unbound: cfg.Cache.UnscheduledPods(),
		templates: cfg.Cache.Templates(), unused: seen.NewSince[string](cfg.Clock), altered: map[string]types.UID{},
		settled: map[string]types.UID{}, live: map[string]listed{},
	}
}

// sync is a manager.Reconcile.
func (k *keeper) sync(ctx context.Context, key string) (time.Duration, error) {
	pods := k.podsOf(key)
	template, exists := k.templates.Get(key)
	want, unknown := wanted(key)
	switch {
	case !exists && len(pods) == 0:
		k.forget(key)
		return 0, nil
	case !exists && unknown != nil:
		return k.missing(ctx, key, unknown, pods)
	case !exists:
		k.unused.Forget(key)
		return k.make(ctx, want, pods)
	case unknown == nil && own(template) && !k.isAsMade(template, want):
		if err := k.remove(ctx, template, "it is not what its name says"); err != nil || len(pods) == 0 {
			return 0, err
		}
		return k.make(ctx, want, pods)
	case len(pods) == 0:
		return k.unneeded(ctx, template)
	case unknown != nil:
		k.unused.Forget(key)
		return 0, nil
	default:
		k.unused.Forget(key)
		return k.judge(ctx, template, want, pods)
	}
}

// missing tells pods of a template whose name says nothing, unless somebody else made it: the
// cache has only those with a label of this driver.
func (k *keeper) missing(ctx context.Context, key string, unknown error, pods []*corev1.Pod) (time.Duration, error) {
	namespace, name, _ := strings.Cut(key, "/")
	_, err := k.Client.ResourceClaimTemplates(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		k.tell(pods, v1alpha1.ReasonClaimTemplateUnknown,
			fmt.Sprintf("The pod's claim cannot be made: %v. Delete the pod and have it made again; if that does not help, "+
				"the admission policies and gpu-compat-controller are of different versions.", unknown))
		return recheckForeign, nil
	case err != nil:
		return 0, fmt.Errorf("look at ResourceClaimTemplate %s, which pods name: %w", key, err)
	default:
		k.clear(pods)
		return 0, nil
	}
}

// wanted is what the name of a template says; an error where it says nothing.
func wanted(key string) (*resourceapi.ResourceClaimTemplate, error) {
	namespace, name, err := toolscache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil, fmt.Errorf("key of a ResourceClaimTemplate: %w", err)
	}
	request, err := legacy.ParseName(name)
	if err != nil {
		return nil, err
	}
	template := request.Template(namespace)
	template.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
	return template, nil
}

// unneeded removes a template after the grace time, if it is one of the controller's own.
func (k *keeper) unneeded(ctx context.Context, template *resourceapi.ResourceClaimTemplate) (time.Duration, error) {
	key := keyOf(template)
	k.unsettle(key)
	if !own(template) {
		k.unused.Forget(key)
		return 0, nil
	}
	if left := k.Grace - k.unused.For(key); left > 0 {
		return left, nil
	}
	needed, err := k.isNeeded(ctx, template)
	if err != nil {
		return 0, err
	}
	if needed {
		k.unused.Forget(key)
		return k.Grace, nil
	}
	return 0, k.remove(ctx, template, "no pod needs it")
}

// forget is for a template that is gone and needed by nobody.
func (k *keeper) forget(key string) {
	k.unused.Forget(key)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.altered, key)
	delete(k.settled, key)
}

func (k *keeper) settle(template *resourceapi.ResourceClaimTemplate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settled[keyOf(template)] = template.UID
}

func (k *keeper) unsettle(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.settled, key)
}

// isSettled reports whether the template that the cache has is as pods need it.
func (k *keeper) isSettled(key string) bool {
	k.mu.Lock()
	uid, is := k.settled[key]
	k.mu.Unlock()
	if !is {
		return false
	}
	template, exists := k.templates.Get(key)
	return exists && template.UID == uid
}

// isAsMade reports whether an own template is one that would be made now.
func (k *keeper) isAsMade(template, want *resourceapi.ResourceClaimTemplate) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.altered[keyOf(template)] == template.UID || same(template, want)
}

func (k *keeper) isAltered(template *resourceapi.ResourceClaimTemplate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.altered[keyOf(template)] = template.UID
}

// make makes the template.
func (k *keeper) make(ctx context.Context, want *resourceapi.ResourceClaimTemplate, pods []*corev1.Pod) (time.Duration,
	error) {
	if k.Beforehand != nil {
		k.Beforehand(ctx, pods)
	}
	ref, templates := klog.KObj(want), k.Client.ResourceClaimTemplates(want.Namespace)
	made, err := templates.Create(ctx, want, metav1.CreateOptions{FieldManager: v1alpha1.ControllerName})
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return 0, nil
	case apierrors.IsAlreadyExists(err):
		// The cache is behind, or somebody made one without the label.
		there, err := templates.Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("look at ResourceClaimTemplate %s, which a pod waits for: %w", ref, err)
		}
		return k.judge(ctx, there, want, pods)
	case err != nil:
		k.tell(pods, v1alpha1.ReasonClaimTemplateNotMade,
			fmt.Sprintf("ResourceClaimTemplate %s could not be made, it is tried again: %v", want.Name, err))
		return 0, fmt.Errorf("make ResourceClaimTemplate %s for a pod that waits for it: %w", ref, err)
	}
	klog.FromContext(ctx).V(2).Info("Made a ResourceClaimTemplate", "template", ref)
	k.tellLag(pods, made.CreationTimestamp)
	if !same(made, want) {
		k.isAltered(made)
		klog.FromContext(ctx).Info("The API server changed the ResourceClaimTemplate as it was made; it stays so", "template",
			ref)
	}
	k.clear(pods)
	return 0, nil
}

// judge looks whether a template that is there is what the pods need.
func (k *keeper) judge(ctx context.Context, there, want *resourceapi.ResourceClaimTemplate, pods []*corev1.Pod) (
	time.Duration, error) {
	switch {
	case own(there) && !k.isAsMade(there, want):
		return recheckOwn, k.remove(ctx, there, "it is not what its name says")
	case own(there) || same(there, want):
		k.settle(there)
		k.clear(pods)
		return 0, nil
	default:
		k.tell(pods, v1alpha1.ReasonClaimTemplateNotOurs,
			fmt.Sprintf("ResourceClaimTemplate %s was made by somebody else and is not what the pod asks for; the pod's "+
				"claim is made of it all the same. Delete the template, then the pod.", there.Name))
		return recheckForeign, nil
	}
}

// remove removes a template of the controller's own, as it was looked at and no other of that
// name.
func (k *keeper) remove(ctx context.Context, template *resourceapi.ResourceClaimTemplate, why string) error {
	ref := klog.KObj(template)
	k.unsettle(keyOf(template))
	err := k.Client.ResourceClaimTemplates(template.Namespace).Delete(ctx, template.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &template.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove ResourceClaimTemplate %s, as %s: %w", ref, why, err)
	}
	klog.FromContext(ctx).V(2).Info("Removed a ResourceClaimTemplate", "template", ref, "reason", why)
	return nil
}
