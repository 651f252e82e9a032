// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// warnings collects what a client would be shown.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) AddWarning(_, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// warnings returns the warnings for a new object, which must not be refused.
func (s *server) warnings(t *testing.T, object runtime.Object) string {
	t.Helper()
	var shown warnings
	expect.Error(t, s.Validate(warning.WithWarningRecorder(t.Context(), &shown), attributesOf(somebody, object, nil, "")))
	return strings.Join(shown.texts, "\n")
}

// checkWarnings checks that the warnings for a new object have this in them, and that there are none where it is empty.
func (s *server) checkWarnings(t *testing.T, want string, object runtime.Object) {
	t.Helper()
	expect.Says(t, s.warnings(t, object), want)
}

func several(r resourceapi.DeviceRequest, count int64) resourceapi.DeviceRequest {
	r.Exactly.Count = count
	return r
}

// Who asks for other GPUs than meant is told when the claim is written, and has it all
// the same.
func TestAdviceOnClaims(t *testing.T) {
	s := newServer(t)
	selecting := several(exactly("a", "topology"), 2)
	selecting.Exactly.Selectors = []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["gpu.aliyun.com"].gpuCount == 2`}}}
	alternative := firstOf("a", "linked-4.topology", "single.topology")
	alternative.FirstAvailable[0].Count = 2
	asDemo := firstOf("a", "linked-4.topology", "single.topology")
	asDemo.FirstAvailable[1].Count = 4
	for name, test := range map[string]struct {
		request resourceapi.DeviceRequest
		want    string
	}{
		"a linked pair": {exactly("a", "linked-2.topology"), ""},
		"two linked pairs": {several(exactly("a", "linked-2.topology"), 2), "request a: count 2 of class " +
			"linked-2.topology.gpu.aliyun.com is 2 sets of 2 GPUs each, 4 GPUs in all. For 2 GPUs leave count out"},
		"as an alternative": {alternative, "request a/linked-4.topology: count 2 of class " +
			"linked-4.topology.gpu.aliyun.com is 2 sets of 4 GPUs each, 8 GPUs in all"},
		"as in the documentation": {asDemo, ""},
		"single GPUs":             {several(exactly("a", "single.topology"), 4), ""},
		"any two": {several(exactly("a", "topology"), 2), "request a: count 2 of class " +
			"topology.gpu.aliyun.com is 2 single GPUs, which need not be linked"},
		"any two of a model": {several(exactly("a", "topology.nvidia-a10"), 2), "2 single GPUs, which need not be linked"},
		"any one":            {exactly("a", "topology"), ""},
		"who selects sets":   {selecting, ""},
		"whole GPUs":         {several(exactly("a", "exclusive"), 2), ""},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "c"}}
			claim.Spec.Devices = claimed(test.request)
			s.checkWarnings(t, test.want, claim)
			s.checkWarnings(t, test.want, templateOf(claim))
			claim.Annotations = map[string]string{"resource.kubernetes.io/pod-claim-name": "gpu"}
			s.checkWarnings(t, "", claim)
		})
	}
}

// The class by which monitoring sees all GPUs is for administrators.
func TestMonitoringIsForAdministrators(t *testing.T) {
	s := newServer(t)
	all := func(class string, access *bool) resourceapi.DeviceRequest {
		r := exactly("a", class)
		r.Exactly.AllocationMode, r.Exactly.AdminAccess = resourceapi.DeviceAllocationModeAll, access
		return r
	}
	const refused = "class monitor.gpu.aliyun.com is for requests with adminAccess"
	for name, test := range map[string]struct {
		request resourceapi.DeviceRequest
		refused string
	}{
		"an administrator's": {all("monitor", ptr.To(true)), ""},
		"somebody's":         {all("monitor", nil), refused},
		"not as one":         {all("monitor", ptr.To(false)), refused},
		"an alternative":     {firstOf("a", "share", "monitor"), refused},
		"other classes":      {all("exclusive", nil), ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.createClaim(team, claimed(test.request)), test.refused)
		})
	}
}
