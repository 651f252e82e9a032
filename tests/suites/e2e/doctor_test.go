// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// What is not in order with a node is found while it is so, and not after it. Other tests break
// other nodes meanwhile.
func TestDoctorFindsWhatIsNotInOrder(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	setMode := cluster.Label(t, "old", modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "3Gi")))
	open := []string{"gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share"}
	var closed []string
	for _, device := range open {
		closed = append(closed, device+" "+switchingTaint)
	}
	cluster.PublishesInAnyOrder(t, "old", open...)
	ns.Run(t, harness.Pod("early", "old", harness.FromTemplate("share")))

	setMode("auction")
	diagnosed(t, "old", doctor.Error, `ack.node.gpu.schedule="auction" is not a known value`)
	setMode("default")
	cluster.Publishes(t, "old", closed...)
	diagnosed(t, "old", doctor.Warning, "it waits to change its mode until the pods on its GPUs have ended")
	if text := cluster.InspectStatus(t, "", "doctor"); !strings.Contains(text.Stdout, "WARNING node/old: ") {
		t.Errorf("as text it says\n%s", text.Stdout)
	}

	// The pod has not ended, so the node has not changed.
	setMode("share")
	cluster.PublishesInAnyOrder(t, "old", open...)
	diagnosed(t, "old", "", "")
}

// diagnosed waits until the doctor says this, and nothing else, of the mode of a node; nothing
// where it is to find nothing. Its exit code reports whether there is something to do.
func diagnosed(t *testing.T, node string, level doctor.Level, text string) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("the doctor to find %q on node %s", text, node), func(context.Context) error {
		got := cluster.InspectStatus(t, "", "doctor", "-o", "json")
		var report doctor.Report
		if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
			return fmt.Errorf("it prints no JSON: %w:\n%s%s", err, got.Stdout, got.Stderr)
		}
		if want := map[bool]int{true: 0, false: 2}[report.Sound()]; got.Status != want || len(report.Checks) < 10 {
			return fmt.Errorf("its exit code is %d, want %d:\n%s%s", got.Status, want, got.Stdout, got.Stderr)
		}
		found := slices.DeleteFunc(report.Findings, func(f doctor.Finding) bool {
			return f.Check != "modes" || f.Object != "node/"+node
		})
		switch {
		case text == "" && len(found) == 0:
			return nil
		case len(found) == 1 && text != "" && found[0].Level == level && strings.Contains(found[0].Text, text) &&
			found[0].Do != "":
			return nil
		}
		return fmt.Errorf("it finds %+v", found)
	})
}
