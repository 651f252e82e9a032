// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// settingRequiredLabel is the plugin's setting that names the label without which a node is not
// the driver's: set for as long as nodes move from device plugins (docs/migrate.md).
const settingRequiredLabel = "REQUIRED_NODE_LABEL"

// migration says which nodes are left to device plugins: those that lack a label.
type migration struct {
	// label is the label that the driver requires of a node; empty where there is no migration.
	label string
	// unknown says that the label could not be read: each node may lack it.
	unknown bool
}

// migration is as the plugin's settings have it.
func (s *Snapshot) migration() migration {
	m := migration{unknown: s.cannotRead("daemonsets.apps")}
	for _, d := range s.DaemonSets {
		if d.Labels[labelComponent] != plugin {
			continue
		}
		for i := range d.Spec.Template.Spec.Containers {
			value, known := s.setting(d.Namespace, &d.Spec.Template.Spec.Containers[i], settingRequiredLabel)
			if value != "" {
				return migration{label: value}
			}
			m.unknown = m.unknown || !known
		}
	}
	return m
}

// leaves reports whether a node is, or may be, left to device plugins.
func (m migration) leaves(node *corev1.Node) bool {
	_, has := node.Labels[m.label]
	return m.unknown || m.label != "" && !has
}

// setting is a variable of a container, as the kubelet sets it: one that is written in the
// container goes before those of ConfigMaps, and a later ConfigMap before an earlier one. It is not
// known where it may be in a ConfigMap that could not be read.
func (s *Snapshot) setting(namespace string, c *corev1.Container, name string) (value string, known bool) {
	known = true
	for _, from := range c.EnvFrom {
		known = known && (from.ConfigMapRef == nil || !s.cannotRead("configmaps"))
		for _, config := range s.ConfigMaps {
			if from.ConfigMapRef == nil || config.Namespace != namespace || config.Name != from.ConfigMapRef.Name {
				continue
			}
			for key, v := range config.Data {
				if from.Prefix+key == name {
					value = v
				}
			}
		}
	}
	for _, env := range c.Env {
		if env.Name == name {
			value, known = env.Value, true
		}
	}
	return value, known
}

// asked is the mode that a node's label asks the driver for, if it does. ACK's own LabelDisabled stays in a migration.
func asked(node *corev1.Node) (string, bool) {
	value, labelled := node.Labels[ack.NodeLabelSchedule]
	return value, labelled && value != mode.LabelDisabled && !ofOtherDriver(node)
}

// ofOtherDriver reports whether a node was given to another DRA driver, which the mode's label does not undo.
func ofOtherDriver(node *corev1.Node) bool {
	driver := node.Labels[v1alpha1.LabelGPUDriver]
	return driver != "" && driver != v1alpha1.DriverName
}

// conversion returns the policies that convert pods, with the namespaces that their binding selects. It returns false
// if the binding or the namespaces could not be read.
func (s *Snapshot) conversion() (legacy.Policies, bool) {
	var selector *metav1.LabelSelector
	binding := scheduling.Named(s.MutatingBindings, "", legacy.BindingConvert)
	if binding != nil && binding.Spec.MatchResources != nil {
		selector = binding.Spec.MatchResources.NamespaceSelector
	}
	policies, err := legacy.NewPolicies(selector)
	return policies, err == nil &&
		!s.cannotRead("namespaces", "mutatingadmissionpolicybindings.admissionregistration.k8s.io")
}
