// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// Where the cluster serves no PodGroups, pods of a gang go one by one, as they did before,
// and an Event says so. Gangs themselves are tested in tests/suites/gang.
func TestGangsWithoutPodGroups(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.GoingTo(harness.Asking("mem 1"), "worker-0", "share")
	pod.Labels = map[string]string{ack.LabelPodGroup: "job", ack.LabelMinAvailable: "2"}
	ns.Run(t, pod)
	ns.WaitPodEvent(t, pod.Name, "GPUGangNotHeld", "feature gate GenericWorkload")
}
