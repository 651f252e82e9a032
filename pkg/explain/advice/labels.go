// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// labelRule is what to select instead of a label that other components put on nodes.
type labelRule struct {
	label *regexp.Regexp
	write func(values []string) string
}

// labelRules are tried in their order, the first that matches holds.
var labelRules = []labelRule{
	// NVIDIA's GPU Feature Discovery.
	{regexp.MustCompile(`^nvidia\.com/gpu\.product$`),
		func(values []string) string { return named(ack.NodeLabelModel, models(values)) }},
	{regexp.MustCompile(`^nvidia\.com/gpu\.memory$`), func(values []string) string {
		for i := range values {
			values[i] += "MiB"
		}
		return named(ack.NodeLabelMemory, values)
	}},
	{regexp.MustCompile(`^nvidia\.com/gpu\.count$`),
		func(values []string) string { return named(ack.NodeLabelCount, values) }},
	{regexp.MustCompile(`^nvidia\.com/(?:gpu\.(?:family|compute\.|machine)|cuda\.)`), func([]string) string {
		return "a claim whose selector names the attribute (architecture, cudaComputeCapability, cudaDriverVersion, " +
			"driverVersion …)"
	}},
	{regexp.MustCompile(`^nvidia\.com/`), leaveOut},
	// Node Feature Discovery: a PCI device of NVIDIA's.
	{regexp.MustCompile(`^feature\.node\.kubernetes\.io/pci-(?:[0-9a-f]{4}_)?10de`), leaveOut},
	// The GPU models of clouds, in words of their own.
	{regexp.MustCompile(
		`^(?:cloud\.google\.com/gke-accelerator|k8s\.amazonaws\.com/accelerator|eks\.amazonaws\.com/instance-gpu-name|` +
			`karpenter\.k8s\.aws/instance-gpu-name|kubernetes\.azure\.com/accelerator|alpha\.kubernetes\.io/nvidia-gpu-name|` +
			`beta\.kubernetes\.io/instance-gpu-name)$`), func([]string) string { return named(ack.NodeLabelModel, nil) }},
}

// leaveOut is for labels that say no more than that a node has GPUs.
func leaveOut([]string) string {
	return "nothing: what asks for a GPU leads to a node that has one"
}

func named(label string, values []string) string {
	if len(values) == 0 {
		return label + " (kubectl get nodes -L " + label + " shows the values)"
	}
	return label + ": " + strings.Join(values, " or ")
}

// Model is that of a product as NVIDIA's GPU Feature Discovery names it, without what tells how its GPUs were divided.
func Model(product string) string {
	model, _, _ := strings.Cut(product, "-MIG-")
	return strings.TrimSuffix(model, "-SHARED")
}

func models(products []string) []string {
	var out []string
	for _, product := range products {
		out = append(out, Model(product))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// need is a label that a node has to have for a pod.
type need struct {
	key string
	// values are those that would do; none where any would.
	values []string
}

func labelRuleFor(key string) (labelRule, bool) {
	i := slices.IndexFunc(labelRules, func(r labelRule) bool { return r.label.MatchString(key) })
	if i < 0 {
		return labelRule{}, false
	}
	return labelRules[i], true
}

// needs lists the labels of other components that every node for the pod would have
// to have, and none has. Of terms of an affinity, which are alternatives, each has to
// have one.
func needs(spec *corev1.PodSpec, onSomeNode func(key string) bool) []need {
	var out []need
	add := func(n need) bool {
		if _, known := labelRuleFor(n.key); !known || onSomeNode(n.key) {
			return false
		}
		if !slices.ContainsFunc(out, func(o need) bool { return o.key == n.key }) {
			out = append(out, n)
		}
		return true
	}
	for _, key := range sortedKeys(spec.NodeSelector) {
		add(need{key, []string{spec.NodeSelector[key]}})
	}
	selected := len(out)
	for _, term := range terms(spec) {
		missing := false
		for _, e := range term.MatchExpressions {
			switch e.Operator {
			case corev1.NodeSelectorOpIn:
				missing = add(need{e.Key, slices.Clone(e.Values)}) || missing
			case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
				missing = add(need{e.Key, nil}) || missing
			default:
				// NotIn and DoesNotExist are content with a label that is not there.
			}
		}
		if !missing {
			return out[:selected]
		}
	}
	return out
}

func terms(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}
