// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// BindingConvert is the MutatingAdmissionPolicyBinding that says whose pods are converted.
const BindingConvert = "gpushare-legacy-convert"

const notConverted = "it would not be converted: "

// labelsOf are the labels of a namespace as the API server has them.
func (in *Input) labelsOf(namespace string) labels.Set {
	return labels.Merge(in.namespaces[namespace], labels.Set{corev1.LabelMetadataName: namespace})
}

// convertsByDefault says whether pods of namespaces are converted that say nothing of it. Where
// they are not, as during a migration, none is refused (deployments/options/migration).
func (in *Input) convertsByDefault() bool {
	return in.converts.Matches(labels.Set{corev1.LabelMetadataName: "any"})
}

// leftAlone says why a pod as on ACK is not converted, empty if it is, and whether it is refused
// for that.
func (in *Input) leftAlone(pod *corev1.Pod) (why string, refused bool) {
	_, unread := in.Unread["Namespace/"+pod.Namespace]
	switch always := in.convertsByDefault(); {
	case pod.Labels[v1alpha1.LabelLegacy] == "false":
		return "it opted out by its label " + v1alpha1.LabelLegacy + "=false", always
	case in.labelsOf(pod.Namespace)[v1alpha1.LabelLegacy] == "false":
		return "its namespace opted out by the label " + v1alpha1.LabelLegacy + "=false", always
	case legacy.OfSystem(pod.Namespace):
		return "pods of this namespace are left alone", always
	case !unread && !in.converts.Matches(in.labelsOf(pod.Namespace)):
		return "the MutatingAdmissionPolicyBinding " + BindingConvert + " does not select its namespace: label it " +
			v1alpha1.LabelLegacy + "=true", false
	}
	return "", false
}

// convert does what the driver's admission policies do with a pod as on ACK.
func (p *pending) convert(in *Input) {
	const alone = " It would run without a GPU; remove the limit and refer to a ResourceClaim or ResourceClaimTemplate"
	out, refused := in.leftAlone(p.pod)
	request, err := legacy.OfPod(p.pod)
	if err == nil && in.labelsOf(p.pod.Namespace)[v1alpha1.LabelCostlyClaims] != v1alpha1.CostlyClaimsAllowed {
		err = request.Searchable()
	}
	switch {
	case out != "" && !refused:
		p.left = notConverted + out
	case err != nil:
		p.refused = "it would be refused: " + err.Error()
	case out != "":
		p.refused = "it would be refused: " + out + "." + alone
	default:
		p.pod = legacy.Convert(p.pod, request)
	}
}

// overLimit says why shares of a pod are refused by the labels of its namespace
// (deployments/options/share-limit).
func (in *Input) overLimit(p *pending) string {
	of := in.labelsOf(p.pod.Namespace)
	for _, limit := range []struct {
		label, unit, more string
		of                resourceapi.QualifiedName
		most              int64
		each              int64
	}{
		{v1alpha1.LabelMaxShareGiB, "Gi", "of a GPU", v1alpha1.CapMemory, 999, devices.GiB},
		{v1alpha1.LabelMaxShareCores, " percent", "of a GPU's compute", v1alpha1.CapCores, 100, 1},
	} {
		text, is := of[limit.label]
		if !is {
			continue
		}
		allowed, err := strconv.ParseInt(text, 10, 64)
		for _, claim := range in.newClaims(p) {
			for name, amounts := range sharesOf(claim) {
				asked, is := amounts[limit.of]
				switch {
				case !is:
				case err != nil || allowed < 1 || allowed > limit.most:
					return fmt.Sprintf("it would be refused by the option share-limit: the label %s: %q of its namespace is no "+
						"whole number from 1 to %d", limit.label, text, limit.most)
				case asked.CmpInt64(allowed*limit.each) > 0:
					return fmt.Sprintf("it would be refused by the option share-limit: request %s asks for %s %s, and its "+
						"namespace is allowed shares of %d%s at most (label %s)", name, asked.String(), limit.more, allowed, limit.unit,
						limit.label)
				}
			}
		}
	}
	return ""
}

// newClaims are the claims of a pod that would be created.
func (in *Input) newClaims(p *pending) []*resourceapi.ResourceClaim {
	var out []*resourceapi.ResourceClaim
	for _, used := range p.pod.Spec.ResourceClaims {
		if claim := p.claims[used.Name]; claim != nil {
			out = append(out, claim)
			continue
		}
		for _, claim := range in.Manifests.Claims {
			if claim.Namespace == p.pod.Namespace && claim.Name == ptr.Deref(used.ResourceClaimName, "") {
				out = append(out, claim)
			}
		}
	}
	return out
}

// sharesOf are the amounts that the requests of a claim for the driver's classes name.
func sharesOf(claim *resourceapi.ResourceClaim) map[string]map[resourceapi.QualifiedName]resource.Quantity {
	out := map[string]map[resourceapi.QualifiedName]resource.Quantity{}
	own := func(class string) bool { return strings.HasSuffix(class, "."+v1alpha1.DriverName) }
	for _, r := range claim.Spec.Devices.Requests {
		if e := r.Exactly; e != nil && own(e.DeviceClassName) && !ptr.Deref(e.AdminAccess, false) && e.Capacity != nil {
			out[r.Name] = e.Capacity.Requests
		}
		for _, s := range r.FirstAvailable {
			if own(s.DeviceClassName) && s.Capacity != nil {
				out[r.Name+"/"+s.Name] = s.Capacity.Requests
			}
		}
	}
	return out
}
