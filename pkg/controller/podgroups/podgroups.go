// SPDX-License-Identifier: Apache-2.0

// Package podgroups has pods that name a gang in ACK's manner scheduled together or not at
// all, by Kubernetes' own PodGroups (KEP-4671).
//
// ACK's scheduler reads the gang from labels of the pods. The default scheduler reads a
// PodGroup that the pod names in spec.schedulingGroup, which nobody can set after the pod's
// creation: an admission policy does. This controller makes the PodGroup, keeps its size as
// the pods say, and removes it when no pod of it is left. PodGroups that somebody else made
// it leaves alone.
//
// A cluster serves PodGroups if its feature gate GenericWorkload and its API
// scheduling.k8s.io/v1beta1 are enabled. Where they are not, the API server drops the pods'
// field, they are scheduled one by one, and an Event of the pods says so.
package podgroups

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	typedschedulingv1beta1 "k8s.io/client-go/kubernetes/typed/scheduling/v1beta1"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// grace is how long a PodGroup stays without pods: a Job that is applied again uses it. It is also how long the last
	// pods of a Job wait for others.
	grace = 10 * time.Second
	// lookAgain is after how long it is asked whether the cluster serves PodGroups now, and
	// whether that of pods that wait is still there.
	lookAgain = time.Minute
	// sweepEvery is how often PodGroups are looked for whose pods went while nobody watched.
	sweepEvery = 10 * time.Minute
	// mostTold is how many pods of a gang are told what is wrong with it.
	mostTold = 10
)

// sweepKey is the key for which PodGroups without pods are looked for. It is no gang's:
// those have a slash.
const sweepKey = "all"

// Config is what the controller needs.
type Config struct {
	// Cache is asked for the pods that name a gang.
	Cache     *cache.Reader
	Client    typedschedulingv1beta1.PodGroupsGetter
	Discovery Discovery
	// Changes writes the annotation by which claims of pods are made.
	Changes metadata.Interface
	Events  *report.Reporter
	Clock   clock.PassiveClock
}

// Discovery is the part of discovery.DiscoveryInterface that tells what the cluster serves.
type Discovery interface {
	ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error)
}

type reconciler struct {
	Config
	pods cache.OfGangs

	enqueue func(key string)
	// quiet is for how long no pod of a gang has come, by its key.
	quiet *seen.Since[string]

	// groups has, by the key of the gang, the last observation of its PodGroup.
	groups sync.Map

	mu sync.Mutex
	// served is what the API server said last about PodGroups.
	served   bool
	servedAt time.Time
	// asking says that somebody asks for it now.
	asking bool
}

// observed is what a PodGroup was last seen to have, and when.
type observed struct {
	minCount      int32
	priorityClass string
	// foreign is one that somebody else made.
	foreign bool
	at      time.Time
	// made is when it was created, by the clock of the API server, with which pods have their times; found says that it
	// was there before the controller. woken is, of the pods that waited for it and were woken, when each is woken
	// again; zero where it is not.
	made  time.Time
	found bool
	woken map[types.UID]time.Time
}

// New returns the controller. Its keys are gangs; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := &reconciler{Config: cfg, pods: cfg.Cache.PodsOfGangs(), quiet: seen.NewSince[string](cfg.Clock)}
	work := manager.NewController("podgroups", r.reconcile)
	r.enqueue = work.Enqueue
	changed := func(pod *corev1.Pod) { work.Enqueue(podstate.NamedGang(pod).String()) }
	came := func(pod *corev1.Pod) {
		r.quiet.Begin(podstate.NamedGang(pod).String())
		changed(pod)
	}
	r.pods.On(cache.Handler[*corev1.Pod]{
		Seen: came,
		Changed: func(before, after *corev1.Pod) {
			changed(before)
			if podstate.NamedGang(after) != podstate.NamedGang(before) {
				came(after)
			}
		},
		Gone: func(pod *corev1.Pod) {
			cfg.Events.Forget(pod.UID)
			changed(pod)
		},
	})
	work.Enqueue(sweepKey)
	return work
}

// reconcile is a manager.Reconcile; the key is that of a gang, or sweepKey.
func (r *reconciler) reconcile(ctx context.Context, key string) (time.Duration, error) {
	served, err := r.isServed()
	if err != nil {
		return 0, err
	}
	if key == sweepKey {
		return sweepEvery, r.sweep(ctx, served)
	}
	name, err := toolscache.ParseObjectName(key)
	if err != nil {
		return 0, fmt.Errorf("%q is no gang: %w", key, err)
	}
	pods := r.pods.Gang(name)
	g, alone := gangOfPods(name.Name, pods, r.quiet.For(key))
	if len(pods) == 0 {
		r.quiet.Forget(key)
	}
	r.tell(alone, served)
	switch {
	case !served && (g != nil && len(g.waiting) > 0 || slices.ContainsFunc(alone, unplaced)):
		return lookAgain, nil
	case !served:
		return 0, nil
	case g == nil:
		return r.remove(ctx, name)
	}
	return r.keep(ctx, name, g)
}

func unplaced(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" }

// isServed reports whether the cluster serves PodGroups, which its administrator may change. It is
// asked again now and then; who comes meanwhile uses what was said last.
func (r *reconciler) isServed() (bool, error) {
	r.mu.Lock()
	if !r.servedAt.IsZero() && (r.asking || r.Clock.Since(r.servedAt) < lookAgain) {
		defer r.mu.Unlock()
		return r.served, nil
	}
	r.asking = true
	r.mu.Unlock()
	served, err := r.ask()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking = false
	if err != nil {
		return false, err
	}
	r.served, r.servedAt = served, r.Clock.Now()
	return served, nil
}

// ask asks the API server whether it serves PodGroups, which may take as long as its client
// waits for an answer.
func (r *reconciler) ask() (bool, error) {
	version := schedulingapi.SchemeGroupVersion.String()
	resources, err := r.Discovery.ServerResourcesForGroupVersion(version)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask whether the cluster serves the PodGroups of %s: %w", version, err)
	}
	return slices.ContainsFunc(resources.APIResources,
		func(of metav1.APIResource) bool { return of.Name == "podgroups" }), nil
}

// tell says to pods that name a gang and are scheduled without it why that is so.
func (r *reconciler) tell(alone []*corev1.Pod, served bool) {
	if served {
		// The others have what they need already.
		alone = slices.DeleteFunc(alone, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	}
	slices.SortFunc(alone, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	r.warn(alone, func(pod *corev1.Pod) string {
		why := "the cluster does not serve PodGroups. Its administrator enables them with the feature gate " +
			"GenericWorkload of kube-apiserver, kube-scheduler and kube-controller-manager, and with " +
			"--runtime-config=scheduling.k8s.io/v1beta1=true of kube-apiserver"
		if served {
			why = whyAlone(pod)
		}
		return "The pod is scheduled by itself, not together with the others of its gang: " + why
	})
}

// warn tells the first of the pods what is wrong with their gang.
func (r *reconciler) warn(pods []*corev1.Pod, message func(*corev1.Pod) string) {
	for _, pod := range pods[:min(len(pods), mostTold)] {
		r.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonGangNotHeld, message(pod))
	}
}

// of returns the last observation of a gang's PodGroup, and false if there is none.
func (r *reconciler) of(key string) (observed, bool) {
	known, _ := r.groups.Load(key)
	group, is := known.(observed)
	return group, is
}

// keep makes the PodGroup of a gang, or gives it the gang's size.
func (r *reconciler) keep(ctx context.Context, name toolscache.ObjectName, g *gang) (time.Duration, error) {
	key := name.String()
	known, _ := r.of(key)
	if known.minCount == g.minCount && (known.foreign || !g.outlived(known.priorityClass)) &&
		r.Clock.Since(known.at) < lookAgain {
		r.tellPriority(known, g)
		return r.wake(ctx, key, known, g)
	}
	groups := r.Client.PodGroups(name.Namespace)
	now := observed{minCount: g.minCount, priorityClass: g.priorityClass}
	group, err := groups.Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		group, err = r.create(ctx, name, g)
	case err != nil:
		return 0, fmt.Errorf("look for PodGroup %s: %w", key, err)
	case !ours(group):
		now.foreign, now.found, now.woken = true, known.found || known.minCount == 0, known.woken
	case g.outlived(group.Spec.PriorityClassName) && !g.newest.Before(&group.CreationTimestamp):
		group, err = r.changePriority(ctx, group, g)
	default:
		now.priorityClass, now.woken = group.Spec.PriorityClassName, known.woken
		now.found = known.found || known.minCount == 0
		err = r.resize(ctx, group, g)
	}
	if err != nil {
		r.tellRefused(g, err)
		return 0, fmt.Errorf("keep PodGroup %s of at least %d pods: %w", key, g.minCount, err)
	}
	now.at, now.made = r.Clock.Now(), group.CreationTimestamp.Time
	r.groups.Store(key, now)
	r.tellPriority(now, g)
	return r.wake(ctx, key, now, g)
}

// resize gives a PodGroup the size of its gang.
func (r *reconciler) resize(ctx context.Context, group *schedulingapi.PodGroup, g *gang) error {
	if group.Spec.SchedulingPolicy.Gang == nil || group.Spec.SchedulingPolicy.Gang.MinCount == g.minCount {
		return nil
	}
	group.Spec.SchedulingPolicy.Gang.MinCount = g.minCount
	_, err := r.Client.PodGroups(group.Namespace).Update(ctx, group, metav1.UpdateOptions{})
	if err == nil {
		klog.FromContext(ctx).Info("Changed the size of a gang", "podGroup", klog.KObj(group), "minCount", g.minCount)
	}
	return err
}

// tellRefused says to pods that wait for their PodGroup why they do so in vain.
func (r *reconciler) tellRefused(g *gang, err error) {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		r.warn(g.waiting, func(*corev1.Pod) string {
			return "The pod waits for the PodGroup of its gang, which the API server refuses: " + err.Error()
		})
	}
}

// nextLook is when somebody who removed the PodGroup is found out, or fewer pods are enough. Pods
// that have a node do not need it.
func (r *reconciler) nextLook(g *gang) time.Duration {
	switch {
	case len(g.waiting) == 0:
		return 0
	case g.again > 0:
		return g.again
	}
	return lookAgain
}

func ours(group *schedulingapi.PodGroup) bool {
	return group.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ControllerName
}

func (r *reconciler) create(
	ctx context.Context, name toolscache.ObjectName, g *gang,
) (*schedulingapi.PodGroup, error) {
	group, err := r.Client.PodGroups(name.Namespace).Create(ctx, &schedulingapi.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name,
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ControllerName}},
		Spec: schedulingapi.PodGroupSpec{
			SchedulingPolicy: schedulingapi.PodGroupSchedulingPolicy{
				Gang: &schedulingapi.GangSchedulingPolicy{MinCount: g.minCount},
			},
			PriorityClassName: g.priorityClass,
		},
	}, metav1.CreateOptions{FieldManager: v1alpha1.ControllerName})
	if err == nil {
		klog.FromContext(ctx).Info("Made the PodGroup of a gang", "podGroup", name, "minCount", g.minCount)
	}
	return group, err
}

// remove removes the PodGroup of a gang without pods when it has had none for a while.
func (r *reconciler) remove(ctx context.Context, name toolscache.ObjectName) (time.Duration, error) {
	key := name.String()
	switch last, known := r.of(key); {
	case !known:
		return 0, nil
	case last.minCount > 0:
		r.groups.Store(key, observed{at: r.Clock.Now()})
		return grace, nil
	case r.Clock.Since(last.at) < grace:
		return grace - r.Clock.Since(last.at), nil
	}
	group, err := r.Client.PodGroups(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err == nil && ours(group) {
		err = r.Client.PodGroups(name.Namespace).Delete(ctx, name.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(group.UID)}})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("remove PodGroup %s, which has no pods: %w", key, err)
	}
	r.groups.Delete(key)
	return 0, nil
}

// sweep queues the PodGroups whose pods may have gone while no replica watched.
func (r *reconciler) sweep(ctx context.Context, served bool) error {
	if !served {
		return nil
	}
	list, err := r.Client.PodGroups(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{v1alpha1.LabelManagedBy: v1alpha1.ControllerName}.String(),
	})
	if err != nil {
		return fmt.Errorf("list the PodGroups of gangs: %w", err)
	}
	for i := range list.Items {
		key := cache.Key(&list.Items[i])
		r.groups.LoadOrStore(key, observed{minCount: 1})
		r.enqueue(key)
	}
	return nil
}
