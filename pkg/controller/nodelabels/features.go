// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

// nvidia begins the labels of NVIDIA's GPU Feature Discovery.
const nvidia = "nvidia.com/"

// Features returns the labels by which GPU Feature Discovery describes a node with so many GPUs, of which the first has
// these attributes. What the attributes do not say has no label, nor what is about NVIDIA's device plugin.
func Features(first map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, gpus int) map[string]string {
	text := func(name resourceapi.QualifiedName) string {
		return strings.ReplaceAll(ptr.Deref(first[name].StringValue, ""), " ", "-")
	}
	labels := map[string]string{"gpu.present": "true", "gpu.count": strconv.Itoa(gpus),
		"gpu.product": text(v1alpha1.AttrProductName), "gpu.family": strings.ToLower(text(v1alpha1.AttrArchitecture))}
	if memory := first[v1alpha1.AttrMemoryMiB].IntValue; memory != nil {
		labels["gpu.memory"] = strconv.FormatInt(*memory, 10)
	}
	for i, part := range version(first[v1alpha1.AttrComputeCapability]) {
		labels["gpu.compute."+[]string{"major", "minor", "patch"}[i]] = part
	}
	for of, attribute := range map[string]resourceapi.QualifiedName{"driver": v1alpha1.AttrDriverVersion,
		"runtime": v1alpha1.AttrCUDADriverVersion} {
		parts := version(first[attribute])
		for i, part := range parts {
			labels["cuda."+of+"-version."+[]string{"major", "minor", "revision"}[i]] = part
			labels["cuda."+of+"."+[]string{"major", "minor", "rev"}[i]] = part
		}
		labels["cuda."+of+"-version.full"] = strings.Join(parts, ".")
	}
	out := make(map[string]string, len(labels))
	for key, value := range labels {
		if value != "" && len(validation.IsValidLabelValue(value)) == 0 {
			out[nvidia+key] = value
		}
	}
	return out
}

// version is the parts of an attribute. NVIDIA's versions have two, or a third of two digits, of which the attribute
// has no leading zero.
func version(a resourceapi.DeviceAttribute) []string {
	parts := strings.Split(strings.TrimSuffix(ptr.Deref(a.VersionValue, ""), ".0"), ".")
	if len(parts) == 3 {
		parts[2] = fmt.Sprintf("%02s", parts[2])
	}
	return parts
}

// features keeps these labels where GPU Feature Discovery does not run, and removes them if they are switched off. It
// writes them under a field manager of its own, by which the API server knows them, and none where another has written
// one of them otherwise. Where GPU Feature Discovery comes later, those that are there are its own: it writes none
// again that is there with its value, and would not notice that they were removed.
func (r *reconciler) features(ctx context.Context, node *cache.Node, published []*view.Slice) error {
	// GPU Feature Discovery alone writes this one, on each node where it runs.
	if _, runs := node.Labels[nvidia+"gfd.timestamp"]; runs {
		return nil
	}
	var want map[string]string
	if r.Features {
		gpus, whole := view.Pool(node.Name, published)
		if !whole {
			return nil // its plugin is being replaced
		}
		var err error
		if want, err = featuresOf(node.Name, published, gpus); err != nil {
			return err
		}
	}
	if len(want) == 0 && !node.Features || len(want) > 0 && len(differences(node.Labels, want)) == 0 {
		return nil
	}
	apply := func(labels map[string]string) error {
		_, err := r.Client.Apply(ctx, applycorev1.Node(node.Name).WithUID(node.UID).WithLabels(labels),
			metav1.ApplyOptions{FieldManager: v1alpha1.FeaturesManager})
		return err
	}
	err := apply(want)
	if apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) {
		klog.FromContext(ctx).Info("NVIDIA's labels are left to whoever writes them", "node", klog.KRef("", node.Name),
			"conflict", err)
		err = apply(nil)
	}
	if err != nil {
		return fmt.Errorf("write labels %s* of node %s: %w", nvidia, node.Name, err)
	}
	return nil
}

// featuresOf are the Features of a node with these GPUs, ordered by index; none where there is no GPU.
func featuresOf(node string, published []*view.Slice, gpus []view.GPU) (map[string]string, error) {
	newest, _ := view.Newest(node, published)
	for _, slice := range newest {
		offered, _, err := slice.Offer()
		if err != nil {
			return nil, fmt.Errorf("node %s: ResourceSlice %s: %w", node, slice.Name, err)
		}
		for _, d := range offered {
			if i := d.Attributes[v1alpha1.AttrIndex].IntValue; i != nil && len(gpus) > 0 && *i == gpus[0].Index {
				return Features(d.Attributes, len(gpus)), nil
			}
		}
	}
	return nil, nil
}
