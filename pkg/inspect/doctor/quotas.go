// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// The policies that the options quota and other-manifests bind.
const (
	quotaPolicy  = "gpushare-quota"
	othersPolicy = "gpushare-other-manifests"
)

// lineGPUs is of a quota as on ACK, and lineSingle counts what it would.
const (
	lineGPUs   = "requests.aliyun.com/gpu"
	lineSingle = "single.topology.gpu.aliyun.com.deviceclass.resource.k8s.io/devices"
	// lineWhole counts GPUs of the DeviceClass that has nvidia.com/gpu, linesOfClasses end those of each class.
	lineWhole      = "requests.nvidia.com/gpu"
	linesOfClasses = ".gpu.aliyun.com.deviceclass.resource.k8s.io/devices"
)

// lineOfOthers is of a quota for HAMi, Volcano or vgpu-manager, as in the policy gpushare-quota-advice.
var lineOfOthers = regexp.MustCompile(
	`^(requests|limits)\.(nvidia\.com/(gpu-?mem|gpucore|gpu\.shared|cores|vgpu)|volcano\.sh/v?gpu-)` +
		`|^limits\.nvidia\.com/gpu$`)

// quotas looks for ResourceQuotas as on ACK or for another project whose lines do not count what the driver gives.
func quotas(s *Snapshot) []Finding {
	binds := func(policy string) bool {
		return slices.ContainsFunc(s.MutatingBindings, func(b *admissionv1.MutatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == policy
		})
	}
	bound, converts := binds(quotaPolicy), binds(othersPolicy)
	known := !s.cannotRead("mutatingadmissionpolicybindings.admissionregistration.k8s.io", "deviceclasses.resource.k8s.io")
	var out []Finding
	for _, q := range s.Quotas {
		say := func(line, text, do string) {
			out = append(out, Finding{Level: Warning, Object: "resourcequota/" + q.Name + " -n " + q.Namespace,
				Text: "its line " + line + " does not count the driver's GPUs" + text, Do: do})
		}
		for line, class := range map[corev1.ResourceName]string{quota.LineMemory: quota.ClassGiB,
			quota.LineCores: quota.ClassPercent} {
			_, has := q.Spec.Hard[line]
			switch {
			case !has || !known:
			case !bound:
				say(string(line), ": that takes the option quota",
					"install the option, which has the line count: docs/quota.md")
			case len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil:
				say(string(line), ", for it has scopes, which are of pods alone", "put the line into a quota without scopes")
			case !slices.ContainsFunc(s.Classes, func(c *resourceapi.DeviceClass) bool {
				return c.Name == class && "requests."+ptr.Deref(c.Spec.ExtendedResourceName, "") == string(line)
			}):
				say(string(line), ", for the DeviceClass "+class+" has lost spec.extendedResourceName",
					"apply the driver's manifests again, on a Kubernetes with the feature gate DRAExtendedResource")
			}
		}
		if _, has := q.Spec.Hard[lineGPUs]; has {
			say(lineGPUs, "", "add the line "+lineSingle+", which does")
		}
		if _, has := q.Spec.Hard[lineWhole]; has && !s.countsShares(q.Namespace) {
			if pod := s.shareForOthers(q.Namespace); pod != "" {
				say(lineWhole, ", but for whole ones: pod "+pod+", written for another project, has a share", "add the line "+
					quota.LineMemory+" (GiB), which counts shares with the option quota: docs/quota.md")
			}
		}
		namespace := scheduling.Named(s.Namespaces, "", q.Namespace)
		if !converts || namespace != nil && namespace.Labels[v1alpha1.LabelLegacy] == "false" {
			continue
		}
		for line := range q.Spec.Hard {
			if lineOfOthers.MatchString(string(line)) {
				say(string(line), "", "write "+quota.LineMemory+" (GiB) or "+quota.LineCores+", which count with the option "+
					"quota, or requests.nvidia.com/gpu, which counts whole GPUs: docs/quota.md")
			}
		}
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Text, b.Text))
	})
	return out
}

// countsShares reports whether a quota of the namespace has a line that is made for the driver's GPUs.
func (s *Snapshot) countsShares(namespace string) bool {
	return slices.ContainsFunc(s.Quotas, func(q *corev1.ResourceQuota) bool {
		for line := range q.Spec.Hard {
			if line == quota.LineMemory || strings.HasSuffix(string(line), linesOfClasses) {
				return q.Namespace == namespace
			}
		}
		return false
	})
}

// shareForOthers names a pod that asked for a share of a GPU as for another project; empty where there is none.
func (s *Snapshot) shareForOthers(namespace string) string {
	for _, pod := range s.Pods {
		if pod.Namespace == namespace && pod.Annotations[v1alpha1.AnnotationOtherRequest] != "" &&
			pod.Annotations[v1alpha1.AnnotationLegacyRequest] != "" {
			return pod.Name
		}
	}
	return ""
}
