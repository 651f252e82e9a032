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
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

type reconciler struct {
	Config
	pods      cache.Converted
	unbound   cache.Unscheduled
	templates cache.Templates

	// unused is for how long a template has been seen without pods, by key.
	unused *seen.Since[string]

	// altered has, by key, the UIDs of templates that the API server stored otherwise than the controller sent them,
	// because an admission policy or webhook changed them.
	altered sync.Map
	// settled has, by key, the UIDs of templates that are as pods need them: further pods that name them change
	// nothing.
	settled sync.Map

	// mu guards live: the templates that were listed last, by namespace.
	mu   sync.Mutex
	live map[string]listed
}

// New returns the controller. Its keys are those of templates; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := newReconciler(cfg)
	work := manager.NewController("claimtemplates", r.reconcile)
	r.pods.On(r.handler(work))
	r.unbound.On(r.handler(work))
	r.templates.On(cache.Noting(func(template *resourceapi.ResourceClaimTemplate) { work.Enqueue(cache.Key(template)) },
		func(_, _ *resourceapi.ResourceClaimTemplate) bool { return true }))
	return work
}

func newReconciler(cfg Config) *reconciler {
	return &reconciler{
		Config: cfg, pods: cfg.Cache.ConvertedPods(), unbound: cfg.Cache.UnscheduledPods(),
		templates: cfg.Cache.Templates(), unused: seen.NewSince[string](cfg.Clock), live: map[string]listed{},
	}
}

// reconcile is a manager.Reconcile.
func (r *reconciler) reconcile(ctx context.Context, key string) (time.Duration, error) {
	pods := r.podsOf(key)
	template, exists := r.templates.Get(key)
	want, unknown := wanted(key)
	switch {
	case !exists && len(pods) == 0:
		r.forget(key)
		return 0, nil
	case !exists && unknown != nil:
		return r.missing(ctx, key, unknown, pods)
	case !exists:
		r.unused.Forget(key)
		return r.make(ctx, want, pods)
	case unknown == nil && own(template) && !r.isAsMade(template, want):
		if err := r.remove(ctx, template, "it is not what its name says"); err != nil || len(pods) == 0 {
			return 0, err
		}
		return r.make(ctx, want, pods)
	case len(pods) == 0:
		return r.unneeded(ctx, template)
	case unknown != nil:
		r.unused.Forget(key)
		return 0, nil
	default:
		r.unused.Forget(key)
		return r.judge(ctx, template, want, pods)
	}
}

// missing tells pods of a template whose name says nothing, unless somebody else made it: the
// cache has only those with a label of this driver.
func (r *reconciler) missing(ctx context.Context, key string, unknown error, pods []*corev1.Pod) (time.Duration,
	error) {
	namespace, name, _ := strings.Cut(key, "/")
	_, err := r.Client.ResourceClaimTemplates(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		r.tell(pods, v1alpha1.ReasonClaimTemplateUnknown,
			fmt.Sprintf("The pod's claim cannot be created: %v. Delete the pod and create it again; if that does not help, "+
				"bring the admission policies and gpu-compat-controller to one version.", unknown))
		return recheckForeign, nil
	case err != nil:
		return 0, fmt.Errorf("look at ResourceClaimTemplate %s, which pods name: %w", key, err)
	default:
		r.clear(pods)
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
func (r *reconciler) unneeded(ctx context.Context, template *resourceapi.ResourceClaimTemplate) (time.Duration, error) {
	key := cache.Key(template)
	r.settled.Delete(key)
	if !own(template) {
		r.unused.Forget(key)
		return 0, nil
	}
	if left := r.Grace - r.unused.For(key); left > 0 {
		return left, nil
	}
	needed, err := r.isNeeded(ctx, template)
	if err != nil {
		return 0, err
	}
	if needed {
		r.unused.Forget(key)
		return r.Grace, nil
	}
	return 0, r.remove(ctx, template, "no pod needs it")
}

// forget is for a template that is gone and needed by nobody.
func (r *reconciler) forget(key string) {
	r.unused.Forget(key)
	r.altered.Delete(key)
	r.settled.Delete(key)
}

// isSettled reports whether the template that the cache has is as pods need it.
func (r *reconciler) isSettled(key string) bool {
	uid, is := r.settled.Load(key)
	if !is {
		return false
	}
	template, exists := r.templates.Get(key)
	return exists && template.UID == uid
}

// isAsMade reports whether an own template is one that would be made now.
func (r *reconciler) isAsMade(template, want *resourceapi.ResourceClaimTemplate) bool {
	uid, _ := r.altered.Load(cache.Key(template))
	return uid == template.UID || same(template, want)
}

// make makes the template.
func (r *reconciler) make(ctx context.Context, want *resourceapi.ResourceClaimTemplate, pods []*corev1.Pod) (
	time.Duration, error) {
	if r.Beforehand != nil {
		r.Beforehand(ctx, pods)
	}
	ref, templates := klog.KObj(want), r.Client.ResourceClaimTemplates(want.Namespace)
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
		return r.judge(ctx, there, want, pods)
	case err != nil:
		r.tell(pods, v1alpha1.ReasonClaimTemplateNotMade,
			fmt.Sprintf("ResourceClaimTemplate %s could not be created, which is tried again: %v", want.Name, err))
		return 0, fmt.Errorf("make ResourceClaimTemplate %s for a pod that waits for it: %w", ref, err)
	}
	klog.FromContext(ctx).V(2).Info("Made a ResourceClaimTemplate", "template", ref)
	r.tellLag(pods, made.CreationTimestamp)
	if !same(made, want) {
		r.altered.Store(cache.Key(made), made.UID)
		klog.FromContext(ctx).Info("The API server changed the ResourceClaimTemplate as it was made; it stays so", "template",
			ref)
	}
	r.clear(pods)
	return 0, nil
}

// judge looks whether a template that is there is what the pods need.
func (r *reconciler) judge(ctx context.Context, there, want *resourceapi.ResourceClaimTemplate, pods []*corev1.Pod) (
	time.Duration, error) {
	switch {
	case own(there) && !r.isAsMade(there, want):
		return recheckOwn, r.remove(ctx, there, "it is not what its name says")
	case own(there) || same(there, want):
		r.settled.Store(cache.Key(there), there.UID)
		r.clear(pods)
		return 0, nil
	default:
		r.tell(pods, v1alpha1.ReasonClaimTemplateNotOurs,
			fmt.Sprintf("ResourceClaimTemplate %s was made by somebody else and is not what the pod asks for, but the pod's "+
				"claim comes from it. Delete the template, then the pod.", there.Name))
		return recheckForeign, nil
	}
}

// remove removes a template of the controller's own, as it was looked at and no other of that
// name.
func (r *reconciler) remove(ctx context.Context, template *resourceapi.ResourceClaimTemplate, why string) error {
	ref := klog.KObj(template)
	r.settled.Delete(cache.Key(template))
	err := r.Client.ResourceClaimTemplates(template.Namespace).Delete(ctx, template.Name, metav1.DeleteOptions{
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

// own reports whether the controller made a template.
func own(template *resourceapi.ResourceClaimTemplate) bool {
	return template.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ControllerName
}

// same reports whether claims of two templates are the same, however amounts and
// parameters are written. What the API server fills in where a template says nothing,
// legacy.Request.Template says.
func same(a, b *resourceapi.ResourceClaimTemplate) bool {
	return apiequality.Semantic.DeepEqual(canonical(a), canonical(b))
}

// canonical is a template's specification with parameters written in one way.
func canonical(template *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaimTemplateSpec {
	spec := template.Spec.DeepCopy()
	for i := range spec.Spec.Devices.Config {
		opaque := spec.Spec.Devices.Config[i].Opaque
		if opaque == nil {
			continue
		}
		var parameters any
		if json.Unmarshal(opaque.Parameters.Raw, &parameters) != nil {
			continue
		}
		if written, err := json.Marshal(parameters); err == nil {
			opaque.Parameters.Raw = written
		}
	}
	return spec
}
