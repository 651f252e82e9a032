// SPDX-License-Identifier: Apache-2.0

// Package nodestatus shows in each node's status how much GPU it offers, under the
// names of ACK's extended resources, for tools that read it there.
//
// The amounts follow the GPUs that the node publishes: all zero while its pool is
// empty, none at all when the pool is gone. Where a device plugin serves one of the
// resources, nothing is written and an Event of the node tells.
//
// A pod that asks for one of the resources and holds no claim would be scheduled by
// these amounts and run without a GPU: the kubelet admits it. So nothing is shown
// unless such pods are refused at creation and none is left from before (policy.go).
package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// lookAgain is how soon to look again when a node changed under our hands.
const lookAgain = time.Second

// Config is what the controller needs.
type Config struct {
	// Cache is asked for nodes, ResourceSlices and, where there is a policy, for that and for pods
	// without a node. A resync repeats the Events of what still holds.
	Cache  *cache.Reader
	Client typedcorev1.NodeInterface
	Events *report.Reporter
	// Policy is the name of the ValidatingAdmissionPolicy that refuses pods which would be
	// scheduled by the amounts. Without one the controller takes back what nodes show since there
	// was one.
	Policy string
}

type reconciler struct {
	Config
	nodes  cache.Nodes
	slices cache.Slices
	policy policy
}

// New returns the controller. Its keys are nodes; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := &reconciler{Config: cfg, nodes: cfg.Cache.Nodes(), slices: cfg.Cache.Slices(), policy: none{}}
	work := manager.NewController("nodestatus", r.sync)
	r.slices.OnChange(work.Enqueue)
	r.nodes.On(cache.Handler[*cache.Node]{
		Seen: func(node *cache.Node) { work.Enqueue(node.Name) },
		Changed: func(before, after *cache.Node) {
			// What kubelets write every now and then is left out; a resync, which brings the same node
			// again, is not.
			if before.ResourceVersion == after.ResourceVersion || !same(before, after) {
				work.Enqueue(after.Name)
			}
		},
		Gone: func(node *cache.Node) { cfg.Events.Forget(node.UID) },
	})
	if cfg.Policy != "" {
		installed := newInstalled(cfg.Cache, cfg.Policy)
		installed.onChange(func() {
			for _, name := range r.nodes.Names() {
				work.Enqueue(name)
			}
		})
		r.policy = installed
	}
	return work
}

// same reports whether there is nothing in it for the controller that one node became the
// other.
func same(before, after *cache.Node) bool {
	return before.UID == after.UID && legacy.Equal(before.Capacity, after.Capacity) &&
		legacy.Equal(before.Allocatable, after.Allocatable) && before.Owners.Equal(after.Owners)
}

// sync is a manager.Reconcile; the key is a node's name.
func (r *reconciler) sync(ctx context.Context, name string) (time.Duration, error) {
	node, exists := r.nodes.Get(name)
	if !exists {
		return 0, nil
	}
	return r.reconcile(ctx, node, r.slices.OnNode(name))
}

func (r *reconciler) reconcile(ctx context.Context, node *cache.Node, published []*view.Slice) (time.Duration, error) {
	enforced, pending := r.policy.enforced(), r.policy.pending()
	if enforced && len(published) > 0 && len(pending) > 0 {
		r.tellPending(node, pending)
	} else {
		r.Events.Clear(node.UID, v1alpha1.ReasonAmountsNotShown)
	}
	if len(published) == 0 || !enforced || len(pending) > 0 {
		r.Events.Clear(node.UID, v1alpha1.ReasonAmountsNotOurs)
		return r.withdraw(ctx, node)
	}
	offered, whole := view.Offered(node.Name, published)
	if !whole {
		return 0, nil
	}
	if foreign := node.Owners.Foreign(node.Status()); len(foreign) > 0 {
		r.tellConflict(node, foreign)
		return 0, nil
	}
	r.Events.Clear(node.UID, v1alpha1.ReasonAmountsNotOurs)
	want := legacy.Of(offered)
	if legacy.Equal(node.Capacity, want) && legacy.Equal(node.Allocatable, want) {
		return 0, nil
	}
	return r.apply(ctx, node, want)
}

// withdraw takes back what the controller wrote, and nothing else. It does not apply
// a node without amounts: the API server does not know who wrote a new node's other
// capacity, and would remove it along with ours.
func (r *reconciler) withdraw(ctx context.Context, node *cache.Node) (time.Duration, error) {
	inCapacity, inAllocatable := node.Owners.OursAlone()
	if len(inCapacity)+len(inAllocatable) == 0 {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"status":   map[string]any{"capacity": removal(inCapacity), "allocatable": removal(inAllocatable)},
	})
	if err != nil {
		return 0, fmt.Errorf("write the patch that removes the GPU amounts of node %s: %w", node.Name, err)
	}
	_, err = r.Client.Patch(ctx, node.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName}, "status")
	return r.written(ctx, node, nil, err)
}

func removal(names []corev1.ResourceName) map[corev1.ResourceName]any {
	out := map[corev1.ResourceName]any{}
	for _, name := range names {
		out[name] = nil
	}
	return out
}

// apply writes the amounts by server-side apply. By force it takes over what is
// somebody else's and no promise: the zeros of a kubelet, and the number of GPUs.
// That is known of the node as it was seen, so it holds for that version of it
// alone. The UID keeps it from making a node that was deleted meanwhile.
func (r *reconciler) apply(ctx context.Context, node *cache.Node, want corev1.ResourceList) (time.Duration, error) {
	desired := applycorev1.Node(node.Name).WithUID(node.UID).
		WithStatus(applycorev1.NodeStatus().WithCapacity(want).WithAllocatable(want))
	takesOver := node.Owners.Others()
	if takesOver {
		desired.WithResourceVersion(node.ResourceVersion)
	}
	_, err := r.Client.ApplyStatus(ctx, desired,
		metav1.ApplyOptions{FieldManager: v1alpha1.ControllerName, Force: takesOver})
	return r.written(ctx, node, want, err)
}

// written is what came of a write.
func (r *reconciler) written(ctx context.Context, node *cache.Node, want corev1.ResourceList, err error) (time.Duration,
	error) {
	logger := klog.FromContext(ctx)
	switch {
	case apierrors.IsConflict(err):
		logger.V(4).Info("The node changed meanwhile, will look again", "node", klog.KRef("", node.Name), "reason", err)
		return lookAgain, nil
	case err != nil:
		return 0, fmt.Errorf("write the GPU amounts into the status of node %s: %w", node.Name, err)
	}
	logger.Info("Wrote the node's GPU amounts", "node", klog.KRef("", node.Name), "amounts", want)
	return 0, nil
}

func (r *reconciler) tellConflict(node *cache.Node, foreign []legacy.Foreign) {
	var amounts []string
	for _, f := range foreign {
		amounts = append(amounts, f.String())
	}
	r.Events.Warn(report.Node(node.Name, node.UID), v1alpha1.ReasonAmountsNotOurs, fmt.Sprintf(
		"The node's GPU amounts are left as they are: %s, as for a device plugin. Remove the device plugin from this "+
			"node; the kubelet forgets it within minutes",
		strings.Join(amounts, "; ")))
}

// mostNamed is how many pods an Event names.
const mostNamed = 5

func (r *reconciler) tellPending(node *cache.Node, pending []string) {
	r.Events.Warn(report.Node(node.Name, node.UID), v1alpha1.ReasonAmountsNotShown, fmt.Sprintf(
		"The node shows no GPU amounts while these pods wait, as a scheduler would place them by the amounts, and they "+
			"would run without a GPU: %s. They are older than the policy that converts such pods: delete them and create "+
			"them again",
		text.List(pending, mostNamed)))
}
