// SPDX-License-Identifier: Apache-2.0

package claimtemplates

import (
	"encoding/json"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

func keyOf(template *resourceapi.ResourceClaimTemplate) string {
	return cache.Key(template)
}

// own reports whether the controller made a template.
func own(template *resourceapi.ResourceClaimTemplate) bool {
	return template.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ControllerName
}

// same reports whether claims of two templates are the same, however amounts and
// parameters are written. What the API server fills in where a template says nothing,
// legacy.Request.Template says.
func same(a, b *resourceapi.ResourceClaimTemplate) bool {
	return apiequality.Semantic.DeepEqual(canonical(a), canonical(b))
}

// canonical is a template's specification with parameters written in one way.
func canonical(template *resourceapi.ResourceClaimTemplate) *resourceapi.ResourceClaimTemplateSpec {
	spec := template.Spec.DeepCopy()
	for i := range spec.Spec.Devices.Config {
		opaque := spec.Spec.Devices.Config[i].Opaque
		if opaque == nil {
			continue
		}
		var parameters any
		if json.Unmarshal(opaque.Parameters.Raw, &parameters) != nil {
			continue
		}
		if written, err := json.Marshal(parameters); err == nil {
			opaque.Parameters.Raw = written
		}
	}
	return spec
}
