// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// helpMost is how many devices a way out names.
const helpMost = 3

// FewerAtOnce is what would help where no node has all GPUs that are asked for, whatever is given back.
const FewerAtOnce = "asking for fewer at once, or a node with more such GPUs"

// Help says what would help on a node: about the request that is farthest from being served; empty where nothing does
// that is about the pod's GPUs. heldBy says who has devices of the node, if anybody.
func Help(n scheduling.NodeRoom, heldBy func(devices []string) string) string {
	lack := n.Farthest
	if lack.Kind == scheduling.OfCPUs {
		_, helps := lackOfCPUs(n.Name, lack.CPUs)
		return helps
	}
	switch lack.Step {
	case scheduling.Full:
		if lack.More > 1 {
			return fmt.Sprintf("room on %d of %s of node %s: %s lacks %s of %s%s", lack.More,
				text.List(lack.Nearest, helpMost), n.Name, lack.Nearest[0], Written(lack.Capacity, lack.Missing), lack.Capacity,
				heldBy(lack.Nearest))
		}
		return fmt.Sprintf("%s more %s free of %s on node %s%s", Written(lack.Capacity, lack.Missing),
			lack.Capacity, lack.Nearest[0], n.Name, heldBy(lack.Nearest[:1]))
	case scheduling.Taken:
		which := oneOf(lack.Nearest)
		if lack.More > 1 {
			which = fmt.Sprintf("%d of %s", lack.More, text.List(lack.Nearest, helpMost))
		}
		return fmt.Sprintf("%s of node %s given back%s", which, n.Name, heldBy(lack.Nearest))
	case scheduling.HeldBack:
		return "a moment: node " + n.Name + " spreads shares, and offers more a few seconds after it sees that a pod waits"
	case scheduling.Tainted:
		return "kubectl describe node " + n.Name + ", whose Events say what closes its GPUs and until when"
	case scheduling.TooSmall:
		return largerThan(lack)
	case scheduling.Unmatched:
		return "another selector, or a node with such GPUs"
	case scheduling.NoStep:
		if lack.Class == nil {
			return "" // no other request for GPUs would change it
		}
		return FewerAtOnce
	case scheduling.OtherClass:
		if lack.Class != nil && lack.Class.Labels[v1alpha1.LabelProfile] != "" {
			return "asking for a profile that a node offers, or a GPU that is cut that way: docs/mig.md"
		}
		return "asking for a class that a node offers (kubectl get deviceclasses), or a node of that mode: " +
			"label ack.node.gpu.schedule"
	default:
		return "asking for less at once"
	}
}

// capacitiesOf lists the names of all capacities that devices have.
func capacitiesOf(devices ...*resourceapi.Device) []string {
	names := map[string]bool{}
	for _, d := range devices {
		for name := range d.Capacity {
			names[string(name)] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// largerThan says what would help a request that no GPU of a node is large enough for.
func largerThan(lack scheduling.Lack) string {
	tooSmall := slices.DeleteFunc(slices.Clone(lack.Seen), func(s scheduling.Seen) bool {
		return s.Step != scheduling.TooSmall
	})
	largest, most := scheduling.Freest(tooSmall), "less"
	if _, known := largest.Device.Capacity[largest.Name]; !known {
		return "asking for a capacity that GPUs have: " + list(capacitiesOf(largest.Device))
	}
	if lack.More == 1 && !largest.Has.IsZero() {
		most = fmt.Sprintf("%s of %s at most", Written(largest.Name, largest.Has), largest.Name)
	}
	return "asking for " + most + ", or a node with larger GPUs"
}

func oneOf(names []string) string {
	if len(names) <= helpMost {
		return strings.Join(names, " or ")
	}
	return fmt.Sprintf("%s or one of %d more", names[0], len(names)-1)
}
