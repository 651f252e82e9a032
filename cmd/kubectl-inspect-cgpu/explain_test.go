// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

func TestExplainPrintsTheAnswerAndBesideItWhatIsNotKnown(t *testing.T) {
	table := oneGPU(9)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q-gpu"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "share.gpu.aliyun.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse("8Gi")}}}}}
	table.Claims[0].Status.Allocation.Devices.Results[0].ShareID = ptr.To(types.UID("share"))
	situation := snapshot(t, table)
	situation.Claims = table.Claims
	o, out, errOut := written()
	expect.NoError(t, o.printWhy(t.Context(), why.Input{Snapshot: situation, Now: time.Unix(0, 0),
		Pod:       &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "q"}},
		PodClaims: []*resourceapi.ResourceClaim{claim}, Notes: []string{"You may not."}}))
	expect.Says(t, out.String(), "Pod a/q waits: no node has room",
		"n1    1     memory: asked 8Gi, largest free 3Gi on gpu-0",
		"- 5Gi more memory free of gpu-0-share on node n1; held by pod a/p (12Gi)")
	expect.Equal(t, "You may not.\n", errOut.String(), "printed beside it")
}

// Each error is one line.
func TestExplainErrors(t *testing.T) {
	fail(t, map[string]string{
		"explain":                 `^"" names neither a pod nor a claim: write pod/NAME or claim/NAME`,
		"explain train":           `^"train" names neither a pod nor a claim`,
		"explain node/n1":         `^"node/n1" names neither a pod nor a claim`,
		"explain pod/a/b":         `^"pod/a/b" names neither a pod nor a claim`,
		"explain pod/":            `^"pod/" names neither a pod nor a claim`,
		"explain pod/p -n a":      "^read pod p of namespace a: ",
		"explain claims c":        "^read ResourceClaim c of namespace default: ",
		"explain pod/p --nothing": "^unknown flag: --nothing",
	})
}

func TestExplainIsCompleted(t *testing.T) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	c, _ := newCommand(streams, terminal{})
	c.SetArgs(arguments([]string{"kubectl_complete-inspect-cgpu", "exp"}))
	t.Setenv("KUBECONFIG", "/nonexistent")
	if err := c.Execute(); err != nil || !strings.HasPrefix(out.String(), "explain\t") {
		t.Errorf("got %q, %v", out, err)
	}
}
