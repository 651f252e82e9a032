// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/nvidia"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const notConverted = "it would not be converted: "

// labelsOf are the labels of a namespace, nil where they could not be read.
func (in *Input) labelsOf(namespace string) labels.Set {
	if n := scheduling.Named(slices.Concat(in.Manifests.Namespaces, in.KnownNamespaces), "", namespace); n != nil {
		return labels.Merge(n.Labels, nil)
	}
	if _, unread := in.Unread["Namespace/"+namespace]; unread {
		return nil
	}
	return labels.Set{}
}

// unconverted returns why claims for NVIDIA's driver are not planned, empty if they are. The option nvidia-dra turns
// requests for a part of a GPU into shares when the API server creates a claim; by the class alone they would get whole
// GPUs.
func (in *Input) unconverted(claims []*resourceapi.ResourceClaim) string {
	class := scheduling.Named(in.Snapshot.Classes, "", nvidia.DriverName)
	for _, c := range claims {
		mps := nvidia.AsksForMPS(c.Spec.Devices.Config)
		for i := range c.Spec.Devices.Requests {
			for _, r := range scheduling.Alternatives(&c.Spec.Devices.Requests[i]) {
				if c.UID == "" && r.Class == nvidia.DriverName && r.OfDriver(class) && (mps || len(r.Capacity) > 0) {
					return fmt.Sprintf("request %s asks for a part of a GPU by class %s, which the option nvidia-dra turns into a "+
						"share when the API server creates the claim: plan on a cluster with the option, as a user who may "+
						"create claims, or write class cgpu.%s (docs/nvidia-dra.md)", r.Name, r.Class, v1alpha1.DriverName)
				}
			}
		}
	}
	return ""
}
