// Package refused gets pods going again that the driver refuses because others hold
// the card that they were allocated. The scheduler allocates a card twice when it
// loses its API server in the midst of a write; others that write allocations may do
// so at any time. Nobody takes an allocation back that a pod holds: where the pod is,
// it can only wait until the others end.
//
// What is done about it follows from one look at the API server, not from caches,
// which only tell when it is worth looking; and only where it has held for a while.
package refused

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedbatchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat/caches"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/loop"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	devslices "github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// Reason is that of the Events.
const Reason = "GPUCardTaken"

const (
	// Starting is how long a pod may be on its node before it is looked at: most are
	// prepared within a second.
	Starting = 5 * time.Second
	// Patience is how long the driver has to have refused a pod before anything is
	// done. Most others end, or go, in that time if they are about to.
	Patience = 15 * time.Second
	// interval is between looks while there is something to find out, and seldom after
	// a pod has waited for lookedLong for something else, or has been told.
	interval   = 5 * time.Second
	seldom     = time.Minute
	lookedLong = time.Minute
)

// Config is what the loop needs.
type Config struct {
	// Pods holds the pods that Selector selects, through Transform; Slices the
	// ResourceSlices of the driver (*cards.Slice). New adds handlers and an index to
	// them; they must not run yet, and the loop must not run before they have synced.
	Pods, Slices cache.SharedIndexInformer
	Claims       typedresourcev1.ResourceClaimsGetter
	Core         typedcorev1.PodsGetter
	Jobs         typedbatchv1.JobsGetter
	Events       *report.Reporter
	Clock        clock.PassiveClock
	// Evict is whether pods that something makes anew are evicted. Otherwise they are
	// told what to do, like those that nothing makes anew.
	Evict bool
}

// everyPod is the one key of the loop.
const everyPod = "*"

type keeper struct {
	Config
	// waiting are the pods that wait, by UID. Only sync uses it.
	waiting map[types.UID]*wait
}

// wait is what is known of a pod that waits.
type wait struct {
	node string
	// since is when it was first seen to wait; refused since when it is known to be
	// refused, zero where it is not.
	since, refused time.Time
	told           bool
}

// New returns the loop. It is to be run with one worker.
func New(cfg Config) (*loop.Loop, error) {
	k := newKeeper(cfg)
	work := loop.New("refused", k.sync)
	if err := caches.IndexSlices(cfg.Slices); err != nil {
		return nil, err
	}
	changed := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok && Waits(pod) {
			work.ChangedAfter(everyPod, Starting)
		}
	}
	if _, err := cfg.Pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: func(object any) {
			if pod, ok := caches.Object(object).(*corev1.Pod); ok {
				cfg.Events.Forget(pod.UID)
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch the pods that have not started: %w", err)
	}
	return work, nil
}

func newKeeper(cfg Config) *keeper { return &keeper{Config: cfg, waiting: map[types.UID]*wait{}} }

// sync is a loop.Sync.
func (k *keeper) sync(ctx context.Context, _ string) (time.Duration, error) {
	k.notice()
	if len(k.waiting) == 0 {
		return 0, nil
	}
	nodes := k.nodes()
	if len(nodes) == 0 {
		return interval, nil
	}
	refusals, err := k.look(ctx, nodes)
	if err != nil {
		return 0, err
	}
	if err := k.act(ctx, refusals); err != nil {
		return 0, err
	}
	return k.again(), nil
}

// notice brings what is known of the pods that wait in line with the cache.
func (k *keeper) notice() {
	there := map[types.UID]bool{}
	for _, pod := range caches.List[*corev1.Pod](k.Pods) {
		if !Waits(pod) {
			continue
		}
		there[pod.UID] = true
		if k.waiting[pod.UID] == nil {
			k.waiting[pod.UID] = &wait{node: pod.Spec.NodeName, since: k.Clock.Now()}
		}
	}
	maps.DeleteFunc(k.waiting, func(uid types.UID, _ *wait) bool { return !there[uid] })
}

// nodes are those on which pods have waited for long enough to be looked at.
func (k *keeper) nodes() []string {
	due := map[string]bool{}
	for _, w := range k.waiting {
		if k.Clock.Since(w.since) >= Starting {
			due[w.node] = true
		}
	}
	return slices.Sorted(maps.Keys(due))
}

func (k *keeper) again() time.Duration {
	for _, w := range k.waiting {
		if !w.told && (!w.refused.IsZero() || k.Clock.Since(w.since) < lookedLong) {
			return interval
		}
	}
	return seldom
}

// look asks the API server what there is on the nodes, and returns which pods are
// refused there. Claims come first: a pod that starts between the two requests is
// missed, one that ends does not count.
func (k *keeper) look(ctx context.Context, nodes []string) ([]Refusal, error) {
	claims, err := k.claims(ctx, nodes)
	if err != nil {
		return nil, err
	}
	var refusals []Refusal
	for _, node := range nodes {
		published, err := caches.SlicesOf(k.Slices, node)
		if err != nil {
			return nil, err
		}
		found, whole, err := CardsOf(node, published)
		if err != nil {
			return nil, err
		}
		if !whole {
			continue
		}
		pods, err := k.Core.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
		if err != nil {
			return nil, fmt.Errorf("list the pods of node %s, where some do not start: %w", node, err)
		}
		n := Node{Name: node, Cards: found, Claims: claims[node]}
		for i := range pods.Items {
			n.Pods = append(n.Pods, &pods.Items[i])
		}
		refusals = append(refusals, n.Refusals()...)
	}
	return refusals, nil
}

// claims are those that are allocated from the nodes' cards, by node.
func (k *keeper) claims(ctx context.Context, nodes []string) (map[string][]*resourceapi.ResourceClaim, error) {
	claims := map[string][]*resourceapi.ResourceClaim{}
	err := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return k.Claims.ResourceClaims(metav1.NamespaceAll).List(ctx, o)
	}).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		c, ok := object.(*resourceapi.ResourceClaim)
		if !ok {
			return fmt.Errorf("among the ResourceClaims is a %T", object)
		}
		for _, node := range nodes {
			if allocatedFrom(c, devslices.PoolName(node)) {
				claims[node] = append(claims[node], c)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the ResourceClaims, for pods that do not start on nodes %v: %w", nodes, err)
	}
	return claims, nil
}

// act does something about the pods that have been refused for long enough, of each
// owner about one at a time: what it owns is not to go all at once.
func (k *keeper) act(ctx context.Context, refusals []Refusal) error {
	refused := map[types.UID]bool{}
	for _, r := range refusals {
		refused[r.Pod.UID] = true
	}
	for uid, w := range k.waiting {
		if !refused[uid] {
			w.refused, w.told = time.Time{}, false
			k.Events.Clear(uid, Reason)
		}
	}
	var errs []error
	evicted := map[types.UID]bool{}
	for _, r := range refusals {
		w := k.waiting[r.Pod.UID]
		if w == nil {
			continue
		}
		if w.refused.IsZero() {
			w.refused = k.Clock.Now()
		}
		owner := metav1.GetControllerOf(r.Pod)
		if k.Clock.Since(w.refused) < Patience || owner != nil && evicted[owner.UID] {
			continue
		}
		advice, err := k.advice(ctx, r, owner)
		switch {
		case err != nil:
			k.tell(r, fmt.Sprintf("It was not evicted: %v. To have another card allocated, delete the pod: %s %s makes another.", err, owner.Kind, owner.Name))
			errs = append(errs, err)
		case advice != "":
			k.tell(r, advice)
			w.told = true
		default:
			evicted[owner.UID] = true
			errs = append(errs, k.evict(ctx, r, owner))
		}
	}
	return errors.Join(errs...)
}

// advice is what to tell the pod's owner to do; empty where the pod can be evicted.
func (k *keeper) advice(ctx context.Context, r Refusal, owner *metav1.OwnerReference) (string, error) {
	switch {
	case !r.Own:
		return fmt.Sprintf("ResourceClaim %s is not this pod's own and keeps its card while pods use it: to have another card allocated, delete all pods that use it.", r.Claim.Name), nil
	case owner == nil:
		return "To have another card allocated, delete the pod and create it again; nothing else makes it anew.", nil
	case !replaces(owner):
		return fmt.Sprintf("It is not evicted, for it is not known what %s %s makes of a pod that is deleted: some fail of it. To have another card allocated, delete the pod if that makes another, or start the %s again.", owner.Kind, owner.Name, owner.Kind), nil
	case !k.Evict:
		return fmt.Sprintf("To have another card allocated, delete the pod: %s %s makes another.", owner.Kind, owner.Name), nil
	case !isJob(owner):
		return "", nil
	}
	job, err := k.Jobs.Jobs(r.Pod.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look whether Job %s/%s would fail of it: %w", r.Pod.Namespace, owner.Name, err)
	case job.UID == owner.UID && !Outlives(job, r.Pod):
		return fmt.Sprintf("It is not evicted, for Job %s would count that as a failure, and fail. To have another card allocated, create the Job again; with a podFailurePolicy that ignores the condition DisruptionTarget it would go on.", owner.Name), nil
	}
	return "", nil
}

// evict evicts the pod as it was looked at, and no other of that name.
func (k *keeper) evict(ctx context.Context, r Refusal, owner *metav1.OwnerReference) error {
	pod := r.Pod
	err := k.Core.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// Something has happened to it: the next look shows whether it still waits.
		return nil
	}
	if err != nil {
		k.tell(r, fmt.Sprintf("It could not be evicted: %v. To have another card allocated, delete the pod: %s %s makes another.", err, owner.Kind, owner.Name))
		return fmt.Errorf("evict pod %s, which waits for a card that others hold: %w", klog.KObj(pod), err)
	}
	klog.FromContext(ctx).Info("Evicted a pod that could not start", "pod", klog.KObj(pod), "owner", owner.Kind+"/"+owner.Name, "claim", klog.KObj(r.Claim), "reason", r.Reason)
	k.tell(r, fmt.Sprintf("It was evicted: %s %s makes another, which is allocated another card or waits for one.", owner.Kind, owner.Name))
	return nil
}

func (k *keeper) tell(r Refusal, whatNext string) {
	k.Events.Warn(corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: r.Pod.Namespace, Name: r.Pod.Name, UID: r.Pod.UID,
	}, Reason, fmt.Sprintf("The scheduler allocated the pod a card that others hold, and it cannot start before they end: %v. %s", r.Reason, whatNext))
}
