// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// AskTimeSlices decides what each of the claim's grants asks of its GPU. ofNode is what the node's label says, for
// grants of which nothing else is said.
//
// A GPU has one time slice, which all its users feel. So the claim decides where it has the whole GPU, and of a share
// only those who administrate the cluster do: by its DeviceClass, or by the node.
func AskTimeSlices(c *resourceapi.ResourceClaim, grants []Grant, ofNode v1alpha1.TimeSlice) error {
	for i := range grants {
		slice, err := grants[i].timeSlice(c, ofNode)
		if err != nil {
			return fmt.Errorf("request %q: %w", grants[i].Request, err)
		}
		if slice != v1alpha1.TimeSliceDefault {
			grants[i].TimeSlice = slice
		}
	}
	return nil
}

func (g Grant) timeSlice(c *resourceapi.ResourceClaim, ofNode v1alpha1.TimeSlice) (v1alpha1.TimeSlice, error) {
	asked := ptr.Deref(g.Config.TimeSlice, "")
	switch {
	case g.Admin:
		return "", nil
	case !g.Mode.TakesTurns() && asked != "" && asked != v1alpha1.TimeSliceDefault:
		return "", fmt.Errorf("timeSlice is %s, but only whole GPUs and GPUs of mode share have time slices; the device is "+
			"of mode %s: leave the field out", asked, g.Mode)
	case !g.Mode.TakesTurns():
		return "", nil
	case !g.Mode.Shared():
		return cmp.Or(asked, ofNode), nil
	}
	class, err := classConfig(c, g.Request)
	if err != nil {
		return "", err
	}
	decided := cmp.Or(ptr.Deref(class.TimeSlice, ""), ofNode)
	if asked != "" && asked != v1alpha1.TimeSliceDefault && asked != decided {
		return "", fmt.Errorf("the claim's timeSlice is %s, but the GPU has one time slice for all claims that share it: "+
			"leave the field out, and have an administrator set it in the DeviceClass or by the node's label %s", asked,
			v1alpha1.LabelTimeSlice)
	}
	return decided, nil
}

// TimeSlices are what GPUs are to have, by UUID, that all these grants use; those that are not in it have the driver's
// default. Of several the shortest counts, whichever was first: whoever asks for a short one cannot do with a longer
// one, and whoever asks for a long one loses some throughput.
func TimeSlices(grants []Grant) map[string]v1alpha1.TimeSlice {
	shortest := map[string]v1alpha1.TimeSlice{}
	rank := func(t v1alpha1.TimeSlice) int { return slices.Index(v1alpha1.TimeSlices(), t) }
	for _, g := range grants {
		if now, is := shortest[g.GPU.UUID]; g.TimeSlice != "" && (!is || rank(g.TimeSlice) < rank(now)) {
			shortest[g.GPU.UUID] = g.TimeSlice
		}
	}
	return shortest
}
