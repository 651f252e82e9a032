// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// On an NVSwitch machine all GPUs are linked alike: claims for linked GPUs get
// single ones, and no GPUs are counted.
func TestTopologyOnNVSwitch(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "whole")
	setMode := cluster.Label(t, "whole", modeLabel)
	ns := cluster.Namespace(t)
	linkedTemplates(t, ns)
	var exclusive, single []string
	for i := range 8 {
		exclusive = append(exclusive, fmt.Sprintf("gpu-%d", i))
		single = append(single, fmt.Sprintf("gpu-%d-topology", i))
	}
	setMode("topology")
	cluster.Publishes(t, "whole", single...)
	cluster.Slice(t, "whole", "is the only one", func(slice *resourceapi.ResourceSlice) error {
		if len(slice.Spec.Devices[0].ConsumesCounters) > 0 {
			return errors.New("its devices consume counters")
		}
		return nil
	})
	ns.Run(t, harness.Pod("four", "whole", harness.FromTemplate("cards-4")))
	grants := ns.Granted(t, "four")
	if diff := cmp.Diff([]int{0, 1, 2, 3}, grantedIndices(grants)); diff != "" || grants[0].Request != "gpus/any" {
		t.Errorf("request %s got (-want +got):\n%s", grants[0].Request, diff)
	}
	// The way back waits for whoever holds GPUs.
	setMode("default")
	var closed []string
	for _, name := range single {
		closed = append(closed, name+" "+switchingTaint)
	}
	cluster.Publishes(t, "whole", closed...)
	ns.Delete(t, "four")
	cluster.Publishes(t, "whole", exclusive...)
}
