// SPDX-License-Identifier: Apache-2.0

// Package podannotations writes on pods that asked for GPUs in ACK's manner which
// GPUs they were given, in the annotations that ACK's scheduler wrote, for tools
// that read them there.
//
// It follows the claims that stand for such requests. Nothing of the driver reads
// the annotations, and what they say is only as true as the pod's claim: of a pod
// that was made from a copy of another, with its annotations, they are replaced, and
// those that the claim gives no cause for are removed.
package podannotations

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Config is what the controller needs.
type Config struct {
	// Cache is asked for claims, converted pods and ResourceSlices.
	Cache *cache.Reader
	// Live reads pods that the cache does not have, Changes writes the pods' annotations.
	Live    typedcorev1.PodsGetter
	Changes metadata.Interface
	// V1 has the annotations of the first version written, too.
	V1 bool
	// Lag, if set, is told how long after the allocation of its claim a pod was annotated.
	Lag func(time.Duration)
}

type reconciler struct {
	Config
	claims cache.Claims
	pods   cache.Converted
	slices cache.Slices
}

// New returns the controller. Its keys are those of claims; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := newReconciler(cfg)
	work := manager.NewController("podannotations", r.sync)
	changed := func(claim *resourceapi.ResourceClaim) {
		if concerned(claim) {
			work.Enqueue(cache.Key(claim))
		}
	}
	r.claims.On(cache.Handler[*resourceapi.ResourceClaim]{Seen: changed})
	if cfg.V1 {
		// The first version also says how large a GPU is.
		r.slices.OnGPUs(func(node string) {
			for _, claim := range r.claims.OnNode(node) {
				changed(claim)
			}
		})
	}
	return work
}

func newReconciler(cfg Config) *reconciler {
	return &reconciler{Config: cfg, claims: cfg.Cache.Claims(), pods: cfg.Cache.ConvertedPods(),
		slices: cfg.Cache.Slices()}
}

// concerned reports whether a claim stands for a request in ACK's manner, and there is
// something to say of it.
func concerned(claim *resourceapi.ResourceClaim) bool {
	return claim.Labels[v1alpha1.LabelLegacy] == "true" && claim.Status.Allocation != nil
}

// sync is a manager.Reconcile; the key is a claim's namespace/name.
func (r *reconciler) sync(ctx context.Context, key string) (time.Duration, error) {
	claim, exists := r.claims.Get(key)
	if !exists {
		return 0, nil
	}
	return 0, r.reconcile(ctx, claim)
}

func (r *reconciler) reconcile(ctx context.Context, c *resourceapi.ResourceClaim) error {
	if !concerned(c) {
		return nil
	}
	users, _ := gpuclaim.Pods(c)
	for _, user := range users {
		if err := r.annotate(ctx, c, user); err != nil {
			return fmt.Errorf("annotate pod %s/%s with what claim %s was allocated: %w", c.Namespace, user.Name, c.Name, err)
		}
	}
	return nil
}

func (r *reconciler) annotate(ctx context.Context, claim *resourceapi.ResourceClaim,
	user resourceapi.ResourceClaimConsumerReference) error {
	pod, err := r.pod(ctx, claim.Namespace, user)
	if pod == nil || err != nil {
		return err
	}
	want, err := For(pod, claim, r.units(gpuclaim.AllocatedFrom(claim)))
	if err != nil {
		return err
	}
	changes := change(pod.Annotations, want)
	if len(changes) == 0 {
		return nil
	}
	// Only this controller knows what was allocated, so it overwrites what others wrote.
	if changed, err := podstate.Annotate(ctx, r.Changes, pod, changes); err != nil || !changed {
		return err
	}
	klog.FromContext(ctx).Info("Annotated the pod", "pod", klog.KObj(pod), "annotations", want)
	// A scheduler before 1.36 does not say when it allocated. Its clock may be ahead.
	if allocated := claim.Status.Allocation.AllocationTimestamp; r.Lag != nil && allocated != nil {
		r.Lag(max(0, time.Since(allocated.Time)))
	}
	return nil
}

// pod is the one that uses a claim; nil where it is gone. The API server is asked only
// for one that the cache does not have: anybody who may change a pod can take off the
// label by which it has it.
func (r *reconciler) pod(ctx context.Context, namespace string, user resourceapi.ResourceClaimConsumerReference) (
	*corev1.Pod, error) {
	if pod, exists := r.pods.Get(namespace + "/" + user.Name); exists && pod.UID == user.UID {
		return pod, nil
	}
	return podstate.Current(ctx, r.Live, namespace, user.Name, user.UID)
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

// units knows the memory of a node's GPUs; it is nil where nobody asks.
func (r *reconciler) units(node string) GPUUnits {
	if !r.V1 {
		return nil
	}
	return func(index int) (int64, bool) {
		for _, slice := range r.slices.OnNode(node) {
			if i := slices.IndexFunc(slice.GPUs, func(c view.GPU) bool { return c.Index == int64(index) }); i >= 0 {
				return gpu.GPU{MemoryMiB: slice.GPUs[i].MemoryMiB}.MemoryUnits(), true
			}
		}
		return 0, false
	}
}
