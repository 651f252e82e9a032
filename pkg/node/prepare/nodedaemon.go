// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// checkNodeDaemon reports that the claim would have the one MPS daemon for all GPUs take those of others: the daemon
// keeps every program but its clients from each of them. A taint keeps new claims off, but some tolerate it, or were
// allocated before. Where other claims, of the records, use the daemon, it has the GPUs already.
func (w *preparation) checkNodeDaemon(records []state.Record, reserved held.Reserved) error {
	others := slices.ContainsFunc(records, func(r state.Record) bool { return isolation.UsesNodeDaemon(r.Grants) })
	if others || !isolation.UsesNodeDaemon(w.record.Grants) {
		return nil
	}
	gpus := w.inventory.Machine.Unpartitioned()
	i := slices.IndexFunc(gpus, func(g gpu.GPU) bool {
		held := reserved.GPU(g.UUID)
		return len(held.Pods) > 0 || held.Driver != ""
	})
	if i < 0 {
		return nil
	}
	return fmt.Errorf("refused, because its shares are limited by one MPS control daemon that is to have all GPUs of the "+
		"node, and GPU %d is held by pods of a device plugin, or by another DRA driver, whose programs it would keep off: "+
		"the kubelet tries again until they have ended; or remove the node's label %s and delete the pod to have it placed "+
		"again", gpus[i].Index, v1alpha1.LabelMPSDaemon)
}
