// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Each policy of the manifests is one that is looked for.
func TestEachPolicyIsLookedFor(t *testing.T) {
	s := installed(t)
	s.Mutating, s.Validating = nil, nil
	found := told(doctor.Examine(s))
	for name := range policyNames(t) {
		expect.Says(t, found, name)
	}
}

// A node that keeps its label's mode for all its GPUs is dynamic.
func TestDynamicNodeOffersAllModes(t *testing.T) {
	s := installed(t)
	s.Nodes[0].Labels["ack.node.gpu.schedule"] = "dynamic"
	s.Slices = append(s.Slices, sliceOf("n1", mode.Exclusive))
	s.Slices[0].Spec.Pool.ResourceSliceCount, s.Slices[2].Spec.Pool.ResourceSliceCount = 2, 2
	if r := doctor.Examine(s); len(r.Findings) > 0 {
		t.Errorf("found\n%s", told(r))
	}
	if ptr.Deref(s.Slices[0].Spec.NodeName, "") != "n1" {
		t.Fatal("the slice is of another node")
	}
}

func TestPrint(t *testing.T) {
	s := installed(t)
	s.ServerVersion = "v1.34.0"
	s.Unread = []string{"events"}
	var text strings.Builder
	r := doctor.Examine(s)
	expect.NoError(t, r.Print(&text))
	data, err := json.MarshalIndent(r, "", "  ")
	expect.NoError(t, err)
	expect.Says(t, text.String(), "ERROR   the API server is Kubernetes v1.34.0",
		"WARNING you may not list events", "        do: run it as an administrator",
		"checks: 1 errors, 1 warnings, 0 notes")
	expect.Says(t, string(data), `"level": "error"`, `"check": "kubernetes"`, `"do": "`)
}
