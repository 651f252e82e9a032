// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// otherDrivers are the GPUs that other DRA drivers have, by UUID, and what is told of them.
func otherDrivers(m *gpu.Machine, t deviceplugin.Reserved) (others map[string]bool, told event) {
	others, told = map[string]bool{}, event{reason: v1alpha1.ReasonOtherDriver}
	var perGPU []string
	for _, g := range m.GPUs {
		card := t.Card(g.UUID)
		if card.Driver == "" {
			continue
		}
		others[g.UUID] = true
		by := card.Driver
		if len(card.Pods) > 0 {
			by += ", held by " + text.List(card.Pods, mostNamed)
		}
		perGPU = append(perGPU, fmt.Sprintf("GPU %d (%s)", g.Index, by))
	}
	if len(perGPU) > 0 {
		told.message = fmt.Sprintf("Other DRA drivers publish these GPUs, too, or gave them to pods, so they take no new "+
			"claims: %s: take that driver off the node, or, if nothing is to be allocated from it, label the node %s=%s: "+
			"docs/install.md#beside-another-dra-driver", strings.Join(perGPU, "; "), v1alpha1.LabelGPUDriver,
			v1alpha1.DriverName)
	}
	return others, told
}
