// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

const (
	// nvidia begins the labels of NVIDIA's GPU Feature Discovery, discoveryRuns is one that it alone writes, on each node
	// where it runs.
	nvidia        = "nvidia.com/"
	discoveryRuns = nvidia + "gfd.timestamp"
)

// Features returns the labels by which GPU Feature Discovery describes a node with so many GPUs, of which the first has
// these attributes. What the attributes do not say has no label, nor what is about NVIDIA's device plugin.
func Features(first map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, gpus int) map[string]string {
	labels := map[string]string{"gpu.present": "true", "gpu.count": strconv.Itoa(gpus)}
	if name := first[v1alpha1.AttrProductName].StringValue; name != nil {
		labels["gpu.product"] = strings.ReplaceAll(*name, " ", "-")
	}
	if memory := first[v1alpha1.AttrMemoryMiB].IntValue; memory != nil {
		labels["gpu.memory"] = strconv.FormatInt(*memory, 10)
	}
	if v := version(first[v1alpha1.AttrComputeCapability]); v != nil {
		labels["gpu.family"], labels["gpu.compute.major"], labels["gpu.compute.minor"] = family(v[0], v[1]), v[0], v[1]
	}
	if v := version(first[v1alpha1.AttrCUDADriverVersion]); v != nil {
		labels["cuda.runtime-version.major"], labels["cuda.runtime-version.minor"] = v[0], v[1]
		labels["cuda.runtime-version.full"] = v[0] + "." + v[1]
		labels["cuda.runtime.major"], labels["cuda.runtime.minor"] = v[0], v[1]
	}
	if v := version(first[v1alpha1.AttrDriverVersion]); v != nil {
		labels["cuda.driver-version.major"], labels["cuda.driver-version.minor"] = v[0], v[1]
		labels["cuda.driver.major"], labels["cuda.driver.minor"] = v[0], v[1]
		full := v[0] + "." + v[1]
		// The attribute has no leading zeros; NVIDIA writes this part with two digits, or not at all.
		if v[2] != "0" {
			revision := fmt.Sprintf("%02s", v[2])
			labels["cuda.driver-version.revision"], labels["cuda.driver.rev"] = revision, revision
			full += "." + revision
		}
		labels["cuda.driver-version.full"] = full
	}
	out := make(map[string]string, len(labels))
	for key, value := range labels {
		if len(validation.IsValidLabelValue(value)) == 0 {
			out[nvidia+key] = value
		}
	}
	return out
}

// version is the three numbers of an attribute; nil where it has none.
func version(a resourceapi.DeviceAttribute) []string {
	parts := strings.Split(ptr.Deref(a.VersionValue, ""), ".")
	if len(parts) != 3 {
		return nil
	}
	return parts
}

// family is the architecture of a compute capability as GPU Feature Discovery names it.
func family(major, minor string) string {
	switch major {
	case "5":
		return "maxwell"
	case "6":
		return "pascal"
	case "7":
		if minor < "5" {
			return "volta"
		}
		return "turing"
	case "8":
		if minor < "9" {
			return "ampere"
		}
		return "ada-lovelace"
	case "9":
		return "hopper"
	case "10", "12":
		return "blackwell"
	default:
		return "undefined"
	}
}

// FeaturesConfig is what the controller of these labels needs.
type FeaturesConfig struct {
	Cache  *cache.Reader
	Client typedcorev1.NodeInterface
	// On is whether it writes them. If not, it removes those that it wrote before.
	On bool
}

// features keeps the labels of nodes where GPU Feature Discovery does not run. It writes them under a field manager of
// its own, so that the API server knows which are its own, and none where another has written one of them otherwise.
type features struct {
	FeaturesConfig
	nodes  cache.Nodes
	slices cache.Slices
}

// NewFeatures returns the controller. Its keys are nodes.
func NewFeatures(cfg FeaturesConfig) *manager.Controller {
	f := &features{FeaturesConfig: cfg, nodes: cfg.Cache.Nodes(), slices: cfg.Cache.Slices()}
	work := manager.NewController("nodefeatures", f.sync)
	if f.On {
		f.slices.OnChange(work.Enqueue)
	}
	changed := func(node *cache.Node) {
		if f.On || node.Features {
			work.Enqueue(node.Name)
		}
	}
	f.nodes.On(cache.Handler[*cache.Node]{Seen: changed, Changed: func(before, after *cache.Node) {
		if before.UID != after.UID || before.Features != after.Features || !maps.Equal(ofNVIDIA(before), ofNVIDIA(after)) {
			changed(after)
		}
	}})
	return work
}

func ofNVIDIA(node *cache.Node) map[string]string {
	labels := maps.Clone(node.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return !strings.HasPrefix(key, nvidia) })
	return labels
}

// sync is a manager.Reconcile; the key is a node's name.
func (f *features) sync(ctx context.Context, name string) (time.Duration, error) {
	node, exists := f.nodes.Get(name)
	if !exists {
		return 0, nil
	}
	return 0, f.reconcile(ctx, node, f.slices.OnNode(name))
}

func (f *features) reconcile(ctx context.Context, node *cache.Node, published []*view.Slice) error {
	var want map[string]string
	if _, runs := node.Labels[discoveryRuns]; f.On && !runs {
		gpus, whole := view.Pool(node.Name, published)
		if !whole {
			return nil // its plugin is being replaced
		}
		if len(gpus) > 0 {
			first, err := attributesOf(node.Name, published, gpus[0].Index)
			if err != nil {
				return err
			}
			want = Features(first, len(gpus))
		}
	}
	if len(want) == 0 && !node.Features || len(want) > 0 && len(differences(node.Labels, want)) == 0 {
		return nil
	}
	err := f.apply(ctx, node, want)
	if apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		klog.FromContext(ctx).Info("NVIDIA's labels are left to whoever writes them", "node", klog.KRef("", node.Name),
			"conflict", err)
		if !node.Features {
			return nil
		}
		err = f.apply(ctx, node, nil)
	}
	if err != nil {
		return fmt.Errorf("write labels %s* of node %s: %w", nvidia, node.Name, err)
	}
	return nil
}

// apply has the node have these labels of ours, and no others of ours.
func (f *features) apply(ctx context.Context, node *cache.Node, labels map[string]string) error {
	_, err := f.Client.Apply(ctx, applycorev1.Node(node.Name).WithUID(node.UID).WithLabels(labels),
		metav1.ApplyOptions{FieldManager: v1alpha1.FeaturesManager})
	return err
}

// attributesOf are those of a device of the GPU with an index.
func attributesOf(node string, published []*view.Slice, index int64) (
	map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, error) {
	newest, _ := view.Newest(node, published)
	for _, slice := range newest {
		offered, _, err := slice.Offer()
		if err != nil {
			return nil, fmt.Errorf("node %s: ResourceSlice %s: %w", node, slice.Name, err)
		}
		for _, d := range offered {
			if i := d.Attributes[v1alpha1.AttrIndex].IntValue; i != nil && *i == index {
				return d.Attributes, nil
			}
		}
	}
	return nil, nil
}
