// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const notConverted = "it would not be converted: "

// labelsOf are the labels of a namespace, nil where they could not be read.
func (in *Input) labelsOf(namespace string) labels.Set {
	if n := named(slices.Concat(in.Manifests.Namespaces, in.KnownNamespaces), "", namespace); n != nil {
		return labels.Merge(n.Labels, nil)
	}
	if _, unread := in.Unread["Namespace/"+namespace]; unread {
		return nil
	}
	return labels.Set{}
}

// overLimit is why claims of a pod would be refused by the labels of their namespace (deployments/options/share-limit).
func (in *Input) overLimit(namespace string, claims []*resourceapi.ResourceClaim) string {
	of := in.labelsOf(namespace)
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
		for _, r := range sharesOf(claims) {
			asked, is := r.Capacity[limit.of]
			switch {
			case !is:
			case err != nil || allowed < 1 || allowed > limit.most:
				return fmt.Sprintf("it would be refused by the option share-limit: the label %s: %q of its namespace is no "+
					"whole number from 1 to %d", limit.label, text, limit.most)
			case asked.CmpInt64(allowed*limit.each) > 0:
				return fmt.Sprintf("it would be refused by the option share-limit: request %s asks for %s %s, and its "+
					"namespace is allowed shares of %d%s at most (label %s)", r.Name, asked.String(), limit.more, allowed,
					limit.unit, limit.label)
			}
		}
	}
	return ""
}

// sharesOf are the requests for the driver's classes of those claims that are not there yet.
func sharesOf(claims []*resourceapi.ResourceClaim) (out []scheduling.Request) {
	for _, c := range claims {
		for i := range c.Spec.Devices.Requests {
			for _, r := range scheduling.Alternatives(&c.Spec.Devices.Requests[i]) {
				if c.UID == "" && strings.HasSuffix(r.Class, "."+v1alpha1.DriverName) && !r.Admin {
					out = append(out, r)
				}
			}
		}
	}
	return out
}
