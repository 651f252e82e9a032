// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// migDomain ends the name of each class of a MIG profile.
const migDomain = ".mig" + domain

// profileSuffix is a profile as names have it that take dots: "1g.10gb.me" for 1g.10gb+me. Two profiles
// of NVIDIA's never share one: what is written "-me" stays as it is.
func profileSuffix(profile string) string { return strings.ReplaceAll(profile, "+", ".") }

// ProfileResource is the extended resource under which NVIDIA's device plugin, with the strategy
// "mixed", serves MIG instances of the profile (source: k8s-device-plugin).
func ProfileResource(profile string) string {
	return v1alpha1.MIGResourcePrefix + profileSuffix(profile)
}

// ProfileOf is the MIG profile that is served as the resource.
func ProfileOf(resource corev1.ResourceName) (string, bool) {
	profile, is := strings.CutPrefix(string(resource), v1alpha1.MIGResourcePrefix)
	return strings.Replace(profile, "gb.", "gb+", 1), is
}

// ProfileClassName is the name of the class for a MIG profile.
func ProfileClassName(profile string) string { return profileSuffix(profile) + migDomain }

// Profile returns the class of a MIG profile, as the device attribute "profile" says it:
// 1g.10gb.me.mig.gpu.aliyun.com for 1g.10gb+me. Pods that were written for NVIDIA's device plugin get its
// devices by their extended resource. One name may be different amounts on different models of GPUs, as it
// is there.
func Profile(profile string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		TypeMeta: metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{
			Name: ProfileClassName(profile),
			Labels: map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare", v1alpha1.LabelMode: string(mode.MIG),
				v1alpha1.LabelProfile: profileSuffix(profile)},
			Annotations: map[string]string{v1alpha1.AnnotationDescription: fmt.Sprintf(
				"One MIG instance of the profile %s, all of it, for one claim. Pods with %s in their limits get one, too.", profile,
				ProfileResource(profile))},
		},
		Spec: resourceapi.DeviceClassSpec{
			ExtendedResourceName: ptr.To(ProfileResource(profile)),
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: `device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].?mode.orValue("") == "mig"` +
					` && device.attributes["gpu.aliyun.com"].?profile.orValue("") == ` + strconv.Quote(profile),
			}}},
		},
	}
}

// WithProfiles adds to the classes those of the MIG profiles whose name or extended resource no class has.
func WithProfiles(classes []*resourceapi.DeviceClass, profiles []string) []*resourceapi.DeviceClass {
	for _, profile := range slices.Compact(slices.Sorted(slices.Values(profiles))) {
		made := Profile(profile)
		if !slices.ContainsFunc(classes, func(c *resourceapi.DeviceClass) bool {
			return c.Name == made.Name || ptr.Deref(c.Spec.ExtendedResourceName, "") == *made.Spec.ExtendedResourceName
		}) {
			classes = append(classes, made)
		}
	}
	return classes
}
