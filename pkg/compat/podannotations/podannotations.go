// Package podannotations writes on pods that asked for GPUs in ACK's manner which
// cards they were given, in the annotations that ACK's scheduler wrote, for tools
// that read them there.
//
// It follows the claims that stand for such requests. Nothing of the driver reads
// the annotations, and what they say is only as true as the pod's claim: of a pod
// that was made from a copy of another, with its annotations, they are replaced.
package podannotations

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/caches"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/cards"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/loop"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Config is what the loop needs.
type Config struct {
	// Claims holds the claims with legacy.Label (*resourceapi.ResourceClaim), Slices the
	// ResourceSlices of the driver (*cards.Slice). New adds a handler to the one and
	// an index to the other; they must not run yet.
	Claims, Slices cache.SharedIndexInformer
	Client         typedcorev1.PodsGetter
	// V1 has the annotations of the first version written, too.
	V1 bool
}

type annotator struct{ Config }

// New returns the loop.
func New(cfg Config) (*loop.Loop, error) {
	a := &annotator{cfg}
	work := loop.New("podannotations", a.sync)
	if err := caches.IndexSlices(cfg.Slices); err != nil {
		return nil, err
	}
	changed := func(object any) {
		if claim, ok := object.(*resourceapi.ResourceClaim); ok && claim.Status.Allocation != nil {
			work.Changed(cache.NewObjectName(claim.Namespace, claim.Name).String())
		}
	}
	if _, err := cfg.Claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
	}); err != nil {
		return nil, fmt.Errorf("watch the claims: %w", err)
	}
	return work, nil
}

// sync is a loop.Sync; the key is a claim's namespace/name.
func (a *annotator) sync(ctx context.Context, key string) (time.Duration, error) {
	object, exists, err := a.Claims.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return 0, err
	}
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return 0, fmt.Errorf("claim %s is a %T in the cache", key, object)
	}
	return 0, a.reconcile(ctx, claim)
}

func (a *annotator) reconcile(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if claim.Status.Allocation == nil {
		return nil
	}
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" {
			continue
		}
		if err := a.annotate(ctx, claim, user); err != nil {
			return fmt.Errorf("annotate pod %s/%s with what claim %s was allocated: %w", claim.Namespace, user.Name, claim.Name, err)
		}
	}
	return nil
}

func (a *annotator) annotate(ctx context.Context, claim *resourceapi.ResourceClaim, user resourceapi.ResourceClaimConsumerReference) error {
	pods := a.Client.Pods(claim.Namespace)
	pod, err := pods.Get(ctx, user.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != user.UID {
		return nil
	}
	if err != nil {
		return err
	}
	want, err := For(pod, claim, a.units(nodeOf(claim)))
	if err != nil {
		return err
	}
	if len(want) == 0 || contains(pod.Annotations, want) {
		return nil
	}
	// By force: nobody else knows what was allocated. The UID keeps it from making a
	// pod that was deleted meanwhile.
	_, err = pods.Apply(ctx, applycorev1.Pod(pod.Name, pod.Namespace).WithUID(pod.UID).WithAnnotations(want),
		metav1.ApplyOptions{FieldManager: compat.Name, Force: true})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// Gone, or another pod of that name.
		return nil
	}
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Annotated the pod", "pod", klog.KObj(pod), "annotations", want)
	return nil
}

func contains(annotations, want map[string]string) bool {
	for key, value := range want {
		if got, ok := annotations[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// units knows the memory of a node's cards; it is nil where nobody asks.
func (a *annotator) units(node string) CardUnits {
	if !a.V1 {
		return nil
	}
	return func(index int) (int64, bool) {
		published, err := caches.SlicesOf(a.Slices, node)
		if err != nil {
			return 0, false
		}
		for _, slice := range published {
			if i := slices.IndexFunc(slice.Cards, func(c cards.Card) bool { return c.Index == int64(index) }); i >= 0 {
				return gpu.GPU{MemoryMiB: slice.Cards[i].MemoryMiB}.MemoryUnits(), true
			}
		}
		return 0, false
	}
}
