// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/nvidia"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// byNVIDIA is a selector that wants devices of NVIDIA's driver.
var byNVIDIA = regexp.MustCompile(`device\.driver\s*==\s*["']gpu\.nvidia\.com["']` +
	`|["']gpu\.nvidia\.com["']\s*==\s*device\.driver`)

// nvidiaDRA looks, where the option nvidia-dra has the class gpu.nvidia.com, for what still means NVIDIA's driver: by
// its name no device of this one can be selected, whatever it publishes.
func nvidiaDRA(s *Snapshot) []Finding {
	class := scheduling.Named(s.Classes, "", nvidia.DriverName)
	if class == nil || !(scheduling.Request{}).OfDriver(class) {
		return nil
	}
	out := heldOfNVIDIA(s.Claims)
	for _, class := range s.Classes {
		if slices.ContainsFunc(scheduling.Conditions(class.Spec.Selectors), byNVIDIA.MatchString) &&
			!strings.HasSuffix(class.Name, ".nvidia.com") {
			out = append(out, notServed("deviceclass/"+class.Name))
		}
	}
	for _, c := range s.Claims {
		for i := range c.Spec.Devices.Requests {
			if c.Status.Allocation == nil && slices.ContainsFunc(scheduling.Alternatives(&c.Spec.Devices.Requests[i]),
				func(r scheduling.Request) bool { return slices.ContainsFunc(r.Selectors, byNVIDIA.MatchString) }) {
				out = append(out, notServed("resourceclaim/"+c.Namespace+"/"+c.Name))
				break
			}
		}
	}
	return out
}

func notServed(object string) Finding {
	return Finding{Level: Warning, Object: object, Text: "it selects devices by the driver name " + nvidia.DriverName +
		", which no device of this driver has", Do: fmt.Sprintf(`write device.driver == "%s" && device.attributes["%s"].`+
		`?mode.orValue("") == "exclusive" instead, or "mig" for MIG instances: docs/nvidia-dra.md`, v1alpha1.DriverName,
		v1alpha1.DriverName)}
}

// heldOfNVIDIA names, by node, the claims that hold devices of NVIDIA's driver, which names its pools by their nodes.
// It has to stay there until they end.
func heldOfNVIDIA(claims []*resourceapi.ResourceClaim) []Finding {
	held := map[string][]string{}
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			name := c.Namespace + "/" + c.Name
			if r.Driver == nvidia.DriverName && !ptr.Deref(r.AdminAccess, false) && !slices.Contains(held[r.Pool], name) {
				held[r.Pool] = append(held[r.Pool], name)
			}
		}
	}
	var out []Finding
	for _, node := range slices.Sorted(maps.Keys(held)) {
		slices.Sort(held[node])
		out = append(out, Finding{Level: Note, Object: "node/" + node,
			Text: "claims hold devices of NVIDIA's driver there: " + text.List(held[node], nodesNamed),
			Do:   "keep that driver on the node until their pods have ended: docs/nvidia-dra.md#migration"})
	}
	return out
}
