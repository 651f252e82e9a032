// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// While nodes move from HAMi or a device plugin, pods of others are those of namespaces that ask for it.
func TestOtherManifestsDuringAMigration(t *testing.T) {
	for values, labels := range map[string]string{
		"options: {otherManifests: true}":                  "matchExpressions",
		"options: {otherManifests: true, migration: true}": "gpu.aliyun.com/legacy",
	} {
		all := installed(t, "gpus", values)
		for _, binding := range []string{"MutatingAdmissionPolicyBinding <nil>/gpushare-other-manifests",
			"MutatingAdmissionPolicyBinding <nil>/gpushare-other-manifests-scheduler",
			"ValidatingAdmissionPolicyBinding <nil>/gpushare-other-manifests-refuse"} {
			selector := part(t, all[binding], "spec", "matchResources", "namespaceSelector")
			text, err := yaml.Marshal(selector)
			if err != nil || !strings.Contains(string(text), labels) ||
				strings.Contains(string(text), "NotIn") != (labels == "matchExpressions") {
				t.Errorf("%s: %s selects %s, %v", values, binding, text, err)
			}
		}
	}
}
