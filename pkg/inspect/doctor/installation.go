// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// settingRequiredLabel is the plugin's setting that names the label without which a node is not
// the driver's: set for as long as nodes move from device plugins (docs/migrate.md).
const settingRequiredLabel = "REQUIRED_NODE_LABEL"

// bindingConvert binds the policy that converts pods.
const bindingConvert = "gpushare-legacy-convert"

// requiredNodeLabel is the label that a node must have for the driver to serve it, or "".
func (s *Snapshot) requiredNodeLabel() string {
	for _, d := range s.DaemonSets {
		if d.Labels[labelComponent] != plugin {
			continue
		}
		for i := range d.Spec.Template.Spec.Containers {
			if value := s.setting(d.Namespace, &d.Spec.Template.Spec.Containers[i], settingRequiredLabel); value != "" {
				return value
			}
		}
	}
	return ""
}

// setting is a variable of a container, as the kubelet sets it: one that is written in the
// container goes before those of ConfigMaps, and a later ConfigMap before an earlier one.
func (s *Snapshot) setting(namespace string, c *corev1.Container, name string) string {
	value := ""
	for _, from := range c.EnvFrom {
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
			value = env.Value
		}
	}
	return value
}

// asked is the mode that a node's label asks the driver for, if it does. The value by which ACK
// keeps GPUs for others, which stays in a migration, does not.
func asked(node *corev1.Node) (string, bool) {
	value, labelled := node.Labels[ack.NodeLabelSchedule]
	return value, labelled && value != "disabled"
}

// left says whether a node is left to device plugins: it lacks the label that the driver requires.
func left(node *corev1.Node, required string) bool {
	_, has := node.Labels[required]
	return required != "" && !has
}

// conversion says of which namespaces pods are converted.
type conversion struct {
	// known says whether namespaces could be read.
	known      bool
	namespaces map[string]bool
}

// conversion is as the policy has it, and the selector of its binding where that has one.
func (s *Snapshot) conversion() conversion {
	selector := &metav1.LabelSelector{}
	for _, b := range s.MutatingBindings {
		if b.Name == bindingConvert && b.Spec.MatchResources != nil && b.Spec.MatchResources.NamespaceSelector != nil {
			selector = b.Spec.MatchResources.NamespaceSelector
		}
	}
	selects, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || s.cannotRead("namespaces") {
		return conversion{}
	}
	c := conversion{known: true, namespaces: map[string]bool{}}
	for _, ns := range s.Namespaces {
		c.namespaces[ns.Name] = selects.Matches(labels.Set(ns.Labels)) && ns.Labels[v1alpha1.LabelLegacy] != "false" &&
			!legacy.OfSystem(ns.Name)
	}
	return c
}
