// Package podannotations writes on pods that asked for GPUs in ACK's manner which
// cards they were given, in the annotations that ACK's scheduler wrote, for tools
// that read them there.
//
// It follows the claims that stand for such requests. Nothing of the driver reads
// the annotations, and what they say is only as true as the pod's claim: of a pod
// that was made from a copy of another, with its annotations, they are replaced, and
// those that the claim gives no cause for are removed.
package podannotations

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/caches"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/cards"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/loop"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Config is what the loop needs.
type Config struct {
	// Claims holds the claims with legacy.Label (*resourceapi.ResourceClaim), Slices the
	// ResourceSlices of the driver (*cards.Slice). New adds an index and a handler to
	// each; they must not run yet.
	Claims, Slices cache.SharedIndexInformer
	Client         typedcorev1.PodsGetter
	// V1 has the annotations of the first version written, too.
	V1 bool
}

type annotator struct{ Config }

// byNode is the index of claims by the node whose cards they were allocated.
const byNode = "node"

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
	if !cfg.V1 {
		return work, nil
	}
	// The first version also says how large a card is.
	if err := cfg.Claims.AddIndexers(cache.Indexers{byNode: allocatedOn}); err != nil {
		return nil, fmt.Errorf("index the claims by node: %w", err)
	}
	if err := caches.OnCards(cfg.Slices, func(node string) {
		// It fails only for an index that there is not.
		claims, _ := cfg.Claims.GetIndexer().IndexKeys(byNode, node)
		for _, key := range claims {
			work.Changed(key)
		}
	}); err != nil {
		return nil, err
	}
	return work, nil
}

// allocatedOn is a cache.IndexFunc.
func allocatedOn(object any) ([]string, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok || claim.Status.Allocation == nil || nodeOf(claim) == "" {
		return nil, nil
	}
	return []string{nodeOf(claim)}, nil
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
	changes := change(pod.Annotations, want)
	if len(changes) == 0 {
		return nil
	}
	// Whoever wrote them, nobody else knows what was allocated. The UID keeps the patch
	// from another pod of that name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": changes}})
	if err != nil {
		return err
	}
	_, err = pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: compat.Name})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Annotated the pod", "pod", klog.KObj(pod), "annotations", want)
	return nil
}

// change is what a merge patch has to say for annotations to be the wanted ones; nil
// removes one. What is none of ACK's annotations stays, and so does everything where
// nothing is wanted: the claim does not say what the pod has.
func change(annotations, want map[string]string) map[string]*string {
	changes := map[string]*string{}
	for _, key := range legacy.Annotations() {
		got, is := annotations[key]
		wanted, should := want[key]
		switch {
		case should && (!is || got != wanted):
			changes[key] = &wanted
		case is && !should && len(want) > 0:
			changes[key] = nil
		}
	}
	return changes
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
