// SPDX-License-Identifier: Apache-2.0

// Package nodelabels writes on each node which GPUs it has: the labels
// aliyun.accelerator/nvidia_name, nvidia_mem and nvidia_count, which pods choose
// nodes by.
//
// The labels follow the GPUs that the node publishes. While it publishes none,
// because its plugin is being replaced or its driver is gone, they stay as they
// are. All three are written at once or none is. Where another tool has written
// one of them and says something else, nothing is written and an Event of the node
// tells.
//
// Where that is switched on, it also writes the labels of NVIDIA's GPU Feature Discovery.
package nodelabels

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// Config is what the controller needs.
type Config struct {
	// Cache is asked for nodes and ResourceSlices. A resync repeats the Events of what still
	// holds.
	Cache  *cache.Reader
	Client typedcorev1.NodeInterface
	Events *report.Reporter
	// Labels is whether it writes ACK's labels, Features GPU Feature Discovery's. If not, the former stay, the latter go.
	Labels, Features bool
}

type reconciler struct {
	Config
	nodes  cache.Nodes
	slices cache.Slices
}

// New returns the controller. Its keys are nodes; it can have several workers.
func New(cfg Config) *manager.Controller {
	r := &reconciler{Config: cfg, nodes: cfg.Cache.Nodes(), slices: cfg.Cache.Slices()}
	work := manager.NewController("nodelabels", r.sync)
	r.slices.OnChange(work.Enqueue)
	changed := func(node *cache.Node) { work.Enqueue(node.Name) }
	r.nodes.On(cache.Handler[*cache.Node]{
		Seen: changed,
		Changed: func(before, after *cache.Node) {
			if !sameLabels(before, after) {
				changed(after)
			}
		},
		Gone: func(node *cache.Node) { cfg.Events.Forget(node.UID) },
	})
	return work
}

func sameLabels(before, after *cache.Node) bool {
	return before.UID == after.UID && before.Features == after.Features &&
		maps.Equal(pick(before.Labels), pick(after.Labels))
}

// sync is a manager.Reconcile; the key is a node's name.
func (r *reconciler) sync(ctx context.Context, name string) (time.Duration, error) {
	node, exists := r.nodes.Get(name)
	if !exists {
		return 0, nil
	}
	var err error
	published := r.slices.OnNode(name)
	if r.Labels {
		err = r.reconcile(ctx, &node.ObjectMeta, published)
	}
	return 0, errors.Join(err, r.features(ctx, node, published))
}

func (r *reconciler) reconcile(ctx context.Context, node *metav1.ObjectMeta, published []*view.Slice) error {
	nodeGPUs, whole := view.Pool(node.Name, published)
	if !whole || len(nodeGPUs) == 0 {
		return nil
	}
	want := For(nodeGPUs)
	r.tellMixed(node, nodeGPUs, want)
	if len(differences(node.Labels, want)) == 0 {
		r.Events.Clear(node.UID, v1alpha1.ReasonLabelsNotOurs)
		return nil
	}
	// Server-side apply without force: the API server knows who wrote a label, and
	// refuses to change all of them if one is not ours. The UID keeps it from
	// making a node that was deleted meanwhile.
	_, err := r.Client.Apply(ctx, applycorev1.Node(node.Name).WithUID(node.UID).WithLabels(want),
		metav1.ApplyOptions{FieldManager: v1alpha1.ControllerName})
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Labelled the node", "node", klog.KRef("", node.Name), "labels", want)
		r.Events.Clear(node.UID, v1alpha1.ReasonLabelsNotOurs)
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		r.tellConflict(node, want, err)
	default:
		return fmt.Errorf("label node %s: %w", node.Name, err)
	}
	return nil
}

func (r *reconciler) tellMixed(node *metav1.ObjectMeta, nodeGPUs []view.GPU, want map[string]string) {
	mixed := Mixed(nodeGPUs)
	if mixed == "" {
		r.Events.Clear(node.UID, v1alpha1.ReasonModelsDiffer)
		return
	}
	r.Events.Normal(report.Node(node.Name, node.UID), v1alpha1.ReasonModelsDiffer, fmt.Sprintf(
		"The GPUs differ: %s. The labels %s=%s and %s=%s are those of GPU %d: choose GPUs by a DeviceClass of the model "+
			"instead",
		mixed, ack.NodeLabelModel, want[ack.NodeLabelModel], ack.NodeLabelMemory, want[ack.NodeLabelMemory],
		nodeGPUs[0].Index))
}

func (r *reconciler) tellConflict(node *metav1.ObjectMeta, want map[string]string, conflict error) {
	var remove []string
	for _, key := range ack.GPUNodeLabels() {
		remove = append(remove, key+"-")
	}
	r.Events.Warn(report.Node(node.Name, node.UID), v1alpha1.ReasonLabelsNotOurs, fmt.Sprintf(
		"Somebody else wrote these labels, and the controller does not change them: %s (%v). To let it: kubectl label "+
			"node %s %s",
		strings.Join(differences(node.Labels, want), ", "), conflict, node.Name, strings.Join(remove, " ")))
}

// differences says, in order, which of the wanted labels are not there.
func differences(labels, want map[string]string) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		value, ok := labels[key]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s is not set, want %q", key, want[key]))
		case value != want[key]:
			out = append(out, fmt.Sprintf("%s is %q, want %q", key, value, want[key]))
		}
	}
	return out
}

func pick(labels map[string]string) map[string]string {
	picked := maps.Clone(labels)
	maps.DeleteFunc(picked, func(key, _ string) bool {
		return !slices.Contains(ack.GPUNodeLabels(), key) && !strings.HasPrefix(key, nvidia)
	})
	return picked
}

// For returns the labels of a node with these GPUs, ordered by index; there has to
// be one. The first GPU names model and memory of all, as ACK's tools take both
// from GPU 0.
func For(nodeGPUs []view.GPU) map[string]string {
	return map[string]string{
		ack.NodeLabelModel:  deviceclasses.LabelValue(nodeGPUs[0].Model),
		ack.NodeLabelMemory: fmt.Sprintf("%dMiB", nodeGPUs[0].MemoryMiB),
		ack.NodeLabelCount:  strconv.Itoa(len(nodeGPUs)),
	}
}

// kind is what the labels can name one of.
type kind struct {
	model     string
	memoryMiB int64
}

// Mixed says in words which GPUs a node has, if the labels do not say it of all of
// them; it is empty where all GPUs are alike.
func Mixed(nodeGPUs []view.GPU) string {
	var kinds []kind
	indices := map[kind][]string{}
	for _, g := range nodeGPUs {
		k := kind{g.Model, g.MemoryMiB}
		if indices[k] == nil {
			kinds = append(kinds, k)
		}
		indices[k] = append(indices[k], strconv.FormatInt(g.Index, 10))
	}
	if len(kinds) < 2 {
		return ""
	}
	var parts []string
	for _, k := range kinds {
		parts = append(parts, fmt.Sprintf("%s with %d MiB (%s)", k.model, k.memoryMiB, strings.Join(indices[k], ", ")))
	}
	return strings.Join(parts, "; ")
}
