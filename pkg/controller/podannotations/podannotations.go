// SPDX-License-Identifier: Apache-2.0

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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// Config is what the controller needs.
type Config struct {
	// Claims holds all claims, through informer.SlimClaim; Pods the pods with legacy.Label,
	// with what Keep leaves of each; Slices the ResourceSlices of the driver
	// (*view.Slice). New adds indices and handlers to them; they must not run yet, and
	// the controller must not run before they have synced.
	Claims, Pods, Slices cache.SharedIndexInformer
	Client               typedcorev1.PodsGetter
	// V1 has the annotations of the first version written, too.
	V1 bool
	// Lag, if set, is told how long after the allocation of its claim a pod was annotated.
	Lag func(time.Duration)
}

type annotator struct{ Config }

// New returns the controller.
func New(cfg Config) (*manager.Controller, error) {
	a := &annotator{cfg}
	work := manager.NewController("podannotations", a.sync)
	if err := informer.IndexSlices(cfg.Slices); err != nil {
		return nil, err
	}
	changed := func(object any) {
		if claim, ok := object.(*resourceapi.ResourceClaim); ok && concerned(claim) {
			work.Enqueue(cache.NewObjectName(claim.Namespace, claim.Name).String())
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
	if err := informer.IndexClaims(cfg.Claims); err != nil {
		return nil, err
	}
	if err := informer.OnCards(cfg.Slices, func(node string) {
		// It fails only for an index that there is not.
		claims, _ := informer.ClaimsOf(cfg.Claims, node)
		for _, claim := range claims {
			changed(claim)
		}
	}); err != nil {
		return nil, err
	}
	return work, nil
}

// concerned says whether a claim stands for a request in ACK's manner, and there is
// something to say of it.
func concerned(claim *resourceapi.ResourceClaim) bool {
	return claim.Labels[v1alpha1.LabelLegacy] == "true" && claim.Status.Allocation != nil
}

// sync is a manager.Reconcile; the key is a claim's namespace/name.
func (a *annotator) sync(ctx context.Context, key string) (time.Duration, error) {
	claim, exists, err := informer.Get[*resourceapi.ResourceClaim](a.Claims, key)
	if err != nil || !exists {
		return 0, err
	}
	return 0, a.reconcile(ctx, claim)
}

func (a *annotator) reconcile(ctx context.Context, c *resourceapi.ResourceClaim) error {
	if !concerned(c) {
		return nil
	}
	users, _ := gpuclaim.Pods(c)
	for _, user := range users {
		if err := a.annotate(ctx, c, user); err != nil {
			return fmt.Errorf("annotate pod %s/%s with what claim %s was allocated: %w", c.Namespace, user.Name, c.Name, err)
		}
	}
	return nil
}

func (a *annotator) annotate(ctx context.Context, claim *resourceapi.ResourceClaim,
	user resourceapi.ResourceClaimConsumerReference) error {
	pod, err := a.pod(ctx, claim.Namespace, user)
	if pod == nil || err != nil {
		return err
	}
	want, err := For(pod, claim, a.units(informer.AllocatedFrom(claim)))
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
	_, err = a.Client.Pods(claim.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone, or another one has its name.
		return nil
	}
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Annotated the pod", "pod", klog.KObj(pod), "annotations", want)
	// A scheduler before 1.36 does not say when it allocated.
	if allocated := claim.Status.Allocation.AllocationTimestamp; a.Lag != nil && allocated != nil {
		a.Lag(time.Since(allocated.Time))
	}
	return nil
}

// pod is the one that uses a claim; nil where it is gone. The API server is asked only
// for one that the cache does not have: anybody who may change a pod can take off the
// label by which it has it.
func (a *annotator) pod(ctx context.Context, namespace string, user resourceapi.ResourceClaimConsumerReference) (
	*corev1.Pod, error) {
	object, exists, err := a.Pods.GetStore().GetByKey(cache.NewObjectName(namespace, user.Name).String())
	if err != nil {
		return nil, err
	}
	if pod, ok := object.(*corev1.Pod); exists && ok && pod.UID == user.UID {
		return pod, nil
	}
	pod, err := a.Client.Pods(namespace).Get(ctx, user.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != user.UID {
		return nil, nil
	}
	return pod, err
}

// annotationMost is how much of an annotation is kept: what is longer is none that this
// package wrote.
const annotationMost = 4096

// Keep copies from a pod what the package reads of it: ACK's annotations, and what its
// containers are called.
func Keep(pod, kept *corev1.Pod) {
	kept.CreationTimestamp = pod.CreationTimestamp
	for _, key := range ack.Annotations() {
		value, is := pod.Annotations[key]
		if !is {
			continue
		}
		if kept.Annotations == nil {
			kept.Annotations = map[string]string{}
		}
		kept.Annotations[key] = strings.Clone(value[:min(len(value), annotationMost)])
	}
	names := func(containers []corev1.Container) []corev1.Container {
		var out []corev1.Container
		for _, c := range containers {
			out = append(out, corev1.Container{Name: c.Name})
		}
		return out
	}
	kept.Spec.Containers, kept.Spec.InitContainers = names(pod.Spec.Containers), names(pod.Spec.InitContainers)
}

// change is what a merge patch has to say for annotations to be the wanted ones; nil
// removes one. What is none of ACK's annotations stays, and so does everything where
// nothing is wanted: the claim does not say what the pod has.
func change(annotations, want map[string]string) map[string]*string {
	changes := map[string]*string{}
	for _, key := range ack.Annotations() {
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
		published, err := informer.SlicesOf(a.Slices, node)
		if err != nil {
			return 0, false
		}
		for _, slice := range published {
			if i := slices.IndexFunc(slice.Cards, func(c view.Card) bool { return c.Index == int64(index) }); i >= 0 {
				return gpu.GPU{MemoryMiB: slice.Cards[i].MemoryMiB}.MemoryUnits(), true
			}
		}
		return 0, false
	}
}
