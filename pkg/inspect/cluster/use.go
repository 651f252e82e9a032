// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

// What is read of the metrics of a node's plugin (docs/metrics.md), and where.
const (
	labelComponent  = "app.kubernetes.io/component"
	pluginName      = "gpu-kubelet-plugin" // also its component's and its service account's
	pluginPort      = "8480"
	metricUsed      = "gpushare_claim_memory_used_bytes"
	metricPeak      = "gpushare_claim_memory_peak_bytes"
	metricProcesses = "gpushare_claim_processes"
	metricUsedGPU   = "gpushare_gpu_memory_used_bytes"
	// metricAudit is there where the plugin looks at who uses what.
	metricAudit = "gpushare_audit_findings"
	kindGone    = "gone-pod"
	// useWithin is how long a node may take to answer: the rest of the answer is there.
	useWithin = 10 * time.Second
)

// fillUse reads what is used of the claims of the pod.
func (r Reader) fillUse(ctx context.Context, in *why.Input) {
	ctx, cancel := context.WithTimeout(ctx, useWithin)
	defer cancel()
	used, err := r.use(ctx, in)
	switch {
	case apierrors.IsForbidden(err):
		in.Notes = append(in.Notes, "You may not read the metrics of the node's plugin (list on pods, get on pods/proxy): "+
			"what is used is not known.")
	case err != nil:
		in.Notes = append(in.Notes, fmt.Sprintf("What is used is not known: %v.", err))
	default:
		in.Used = used
	}
}

// use reads what the pod uses of claims; where a claim is asked for, what all pods of its namespace on the pod's node
// use. What a container uses that has a GPU by several claims is under the names of all of them, joined by commas.
func (r Reader) use(ctx context.Context, in *why.Input) (map[why.ClaimGPU]why.Use, error) {
	node := in.Pod.Spec.NodeName
	plugins, err := r.plugins(ctx, node)
	if err != nil {
		return nil, err
	}
	metrics, err := r.metrics(ctx, node, plugins)
	if err != nil {
		return nil, err
	}
	used := map[why.ClaimGPU]why.Use{}
	named := namesPods(metrics, in.Pod)
	add := func(name string, to func(u *why.Use, value float64)) {
		eachGPU(metrics[name], func(gpu int, labels map[string]string, value float64) {
			key := why.ClaimGPU{Claim: labels["claim"], GPU: gpu}
			u := used[key]
			unnamed := labels["pod"] == "" && !named
			switch {
			case labels["namespace"] != in.Pod.Namespace:
				return
			case in.Claim != nil || labels["pod"] == in.Pod.Name || unnamed && hasAlone(in, key.Claim):
				to(&u, value)
			case unnamed:
				u.Unknown = true
			default:
				return
			}
			used[key] = u
		})
	}
	add(metricUsed, func(u *why.Use, value float64) { u.MemoryBytes += int64(value) })
	add(metricProcesses, func(u *why.Use, value float64) { u.Processes += int(value) })
	return used, nil
}

// namesPods reports whether series without a pod's name are of others than the pod: of pods that are gone. Else they
// may be of any pod, as where the plugin cannot read pods.
func namesPods(metrics map[string]*dto.MetricFamily, pod *corev1.Pod) bool {
	return gonePods(metrics) || slices.ContainsFunc(metrics[metricUsed].GetMetric(), func(m *dto.Metric) bool {
		labels := labelsOf(m)
		return labels["namespace"] == pod.Namespace && labels["pod"] == pod.Name
	})
}

// hasAlone reports whether one of the claims, by which a container has a GPU, is the pod's and nobody else's.
func hasAlone(in *why.Input, claims string) bool {
	return slices.ContainsFunc(in.PodClaims, func(c *resourceapi.ResourceClaim) bool {
		pods, others := claim.Pods(c)
		return len(pods) == 1 && !others && slices.Contains(strings.Split(claims, ","), c.Name)
	})
}

// eachGPU calls the function for each series of a metric that is about a GPU.
func eachGPU(family *dto.MetricFamily, do func(gpu int, labels map[string]string, value float64)) {
	for _, m := range family.GetMetric() {
		labels := labelsOf(m)
		if gpu, err := strconv.Atoi(labels["gpu"]); err == nil {
			do(gpu, labels, m.GetGauge().GetValue())
		}
	}
}

// plugins are the pods that say that they are the plugin of a node, of all nodes if it is empty.
func (r Reader) plugins(ctx context.Context, node string) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: labelComponent + "=" + pluginName}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	pods, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("look for the plugins of nodes: %w", err)
	}
	return pods.Items, nil
}

// metrics reads those of a node's plugin, which look at who uses what.
func (r Reader) metrics(ctx context.Context, node string, plugins []corev1.Pod) (map[string]*dto.MetricFamily, error) {
	plugin := runningPlugin(plugins)
	if plugin == nil {
		return nil, fmt.Errorf("no pod of %s runs on node %s", pluginName, node)
	}
	text, err := r.Client.CoreV1().Pods(plugin.Namespace).ProxyGet("http", plugin.Name, pluginPort, "metrics",
		nil).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of pod %s/%s: %w", plugin.Namespace, plugin.Name, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	metrics, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parse the metrics of pod %s/%s: %w", plugin.Namespace, plugin.Name, err)
	}
	if metrics[metricAudit] == nil {
		return nil, errors.New("the node's plugin does not look at who uses what (setting AUDIT_INTERVAL)")
	}
	return metrics, nil
}

// runningPlugin is the node's plugin among pods with its label, which any tenant can give a pod:
// the plugin's pod is privileged and runs under the plugin's service account. Whoever may create
// a privileged pod has the node, and with it the plugin. During an update there are two, and
// either answers.
func runningPlugin(pods []corev1.Pod) *corev1.Pod {
	i := slices.IndexFunc(pods, func(pod corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil &&
			pod.Spec.ServiceAccountName == pluginName && bundle.IsPrivileged(&pod.Spec)
	})
	if i < 0 {
		return nil
	}
	return &pods[i]
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}
