// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// ownSettings is the ConfigMap of the one plugin that has settings of its own.
const ownSettings = "e2e-settings"

// pluginWith replaces the plugin of a node by one with other settings than the cluster's, until
// the test ends; an empty value takes a setting away. Plugins end when their settings change, so
// the others' ConfigMap is left as it is: the DaemonSet names another one, and replaces no pods
// meanwhile. A pod that is created again elsewhere would have it as well, therefore the test has the
// cluster to itself. The returned function sets one more, which the plugin takes by itself.
func pluginWith(t *testing.T, node string, settings map[string]string) (set func(key, value string)) {
	t.Helper()
	maps := cluster.Client.CoreV1().ConfigMaps(harness.PluginNamespace)
	common := harness.Get(t, maps, daemonSet)
	own := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ownSettings}, Data: common.Data}
	for key, value := range settings {
		if own.Data[key] = value; value == "" {
			delete(own.Data, key)
		}
	}
	t.Cleanup(func() {
		if err := maps.Delete(context.Background(), ownSettings, metav1.DeleteOptions{}); err != nil {
			t.Errorf("take the settings of one plugin away: %v", err)
		}
	})
	harness.Make(t, maps, own)
	var before appsv1.DaemonSetSpec
	changeDaemonSet(t, func(spec *appsv1.DaemonSetSpec) {
		before = *spec.DeepCopy()
		spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
		readSettingsOf(&spec.Template.Spec, ownSettings)
	})
	t.Cleanup(func() {
		// One after the other: nothing is out of date when pods are replaced again that are.
		changeDaemonSet(t, func(spec *appsv1.DaemonSetSpec) { spec.Template = before.Template })
		cluster.ReplacePlugin(t, node)
		changeDaemonSet(t, func(spec *appsv1.DaemonSetSpec) { spec.UpdateStrategy = before.UpdateStrategy })
	})
	cluster.ReplacePlugin(t, node)
	return func(key, value string) {
		t.Helper()
		harness.Patch(t, maps, ownSettings, types.MergePatchType, fmt.Sprintf(`{"data":{%q:%q}}`, key, value))
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

// changeDaemonSet changes the plugins' DaemonSet, and waits until its controller has seen it.
func changeDaemonSet(t *testing.T, change func(spec *appsv1.DaemonSetSpec)) {
	t.Helper()
	sets := cluster.Client.AppsV1().DaemonSets(harness.PluginNamespace)
	var generation int64
	harness.Eventually(t, "the plugins' DaemonSet to be changed", func(ctx context.Context) error {
		set, err := sets.Get(ctx, daemonSet, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&set.Spec)
		set, err = sets.Update(ctx, set, metav1.UpdateOptions{})
		if err == nil {
			generation = set.Generation
		}
		return err
	})
	harness.Eventually(t, "the change of the plugins' DaemonSet to be seen", func(ctx context.Context) error {
		set, err := sets.Get(ctx, daemonSet, metav1.GetOptions{})
		if err == nil && set.Status.ObservedGeneration < generation {
			err = errors.New("its controller has not")
		}
		return err
	})
}
