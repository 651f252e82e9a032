// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	// ownSettings are the DaemonSet of the one plugin that has settings of its own, and its ConfigMap.
	ownSettings = "e2e-settings"
	// ownPlugin is the label of a node that the driver's DaemonSet leaves alone: the lanes install the driver so.
	ownPlugin = "e2e-own-plugin"
)

// pluginWith replaces the plugin of a node, which the test has to itself, by one with other settings than the
// cluster's, until the test ends; an empty value takes a setting away. The returned function sets one more, which the
// plugin takes by itself.
func pluginWith(t *testing.T, node string, settings map[string]string) (set func(key, value string)) {
	t.Helper()
	configs := cluster.Client.CoreV1().ConfigMaps(harness.PluginNamespace)
	sets := cluster.Client.AppsV1().DaemonSets(harness.PluginNamespace)
	meta := metav1.ObjectMeta{Name: ownSettings}
	config := &corev1.ConfigMap{ObjectMeta: meta, Data: maps.Clone(harness.Get(t, configs, daemonSet).Data)}
	maps.Copy(config.Data, settings)
	maps.DeleteFunc(config.Data, func(_, value string) bool { return value == "" })
	harness.Make(t, configs, config)
	t.Cleanup(func() {
		cluster.WaitPluginOf(t, node, daemonSet)
		expect.NoError(t, configs.Delete(harness.Context(t), ownSettings, metav1.DeleteOptions{}))
	})
	cluster.Label(t, node, ownPlugin)("true")
	own := &appsv1.DaemonSet{ObjectMeta: meta, Spec: harness.Get(t, sets, daemonSet).Spec}
	metav1.AddLabelToSelector(own.Spec.Selector, ownPlugin, node)
	metav1.SetMetaDataLabel(&own.Spec.Template.ObjectMeta, ownPlugin, node)
	pod := &own.Spec.Template.Spec
	pod.NodeSelector, pod.Affinity = map[string]string{corev1.LabelHostname: node}, nil
	readSettingsOf(pod, ownSettings)
	t.Cleanup(func() { expect.NoError(t, sets.Delete(harness.Context(t), ownSettings, metav1.DeleteOptions{})) })
	harness.Make(t, sets, own)
	cluster.WaitPluginOf(t, node, ownSettings)
	return func(key, value string) {
		t.Helper()
		harness.Patch(t, configs, ownSettings, types.MergePatchType, fmt.Sprintf(`{"data":{%q:%q}}`, key, value))
		cluster.WaitPluginSetting(t, node, key, value)
	}
}

// readSettingsOf has a plugin read its settings of another ConfigMap, in the environment and in
// the directory in which it sees them change.
func readSettingsOf(pod *corev1.PodSpec, configMap string) {
	for i := range pod.Containers {
		for j := range pod.Containers[i].EnvFrom {
			if from := pod.Containers[i].EnvFrom[j].ConfigMapRef; from != nil && from.Name == daemonSet {
				from.Name = configMap
			}
		}
	}
	for i := range pod.Volumes {
		if from := pod.Volumes[i].ConfigMap; from != nil && from.Name == daemonSet {
			from.Name = configMap
		}
	}
}
