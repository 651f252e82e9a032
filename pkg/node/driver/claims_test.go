// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// The status of a claim is read together with metrics and nvidia-smi: it has the index that the GPU has now.
func TestStatusOfAClaimOfAGPUWithAnotherIndex(t *testing.T) {
	a, store := agentWithClaims(t, 2)
	a.registry = isolation.NewRegistry(isolation.Config{})
	a.preparer = prepare.New(prepare.Options{Store: store, Isolation: a.registry})
	shifted := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-1", MemoryMiB: 16130}}}
	a.preparer.SetInventory(&prepare.Inventory{Machine: shifted, Base: preparetest.Base("")})
	claims, err := a.claimStatuses(t.Context())
	if err != nil || len(claims) != 2 {
		t.Fatalf("claims %+v, %v", claims, err)
	}
	var told v1alpha1.DeviceStatus
	expect.NoError(t, json.Unmarshal(claims[1].Devices[0].Data.Raw, &told))
	if device := claims[1].Devices[0].Device; device != "gpu-1-share" || told.GPUs[0].Index != 0 {
		t.Errorf("device %s has GPUs %+v, want index 0", device, told.GPUs)
	}
}

// The kubelet kills what a pod has left in its control group only after the claim's release has succeeded: a process
// that the runtime has lost must not keep the pod, and what the process uses must not be released.
func TestProcessThatOutlivesItsPod(t *testing.T) {
	a, store := agentWithClaims(t, 1)
	now := running{pods: map[types.UID]bool{"p0": true}}
	clock := testingclock.NewFakeClock(time.Now())
	inUse := seen.NewSince[types.UID](clock)
	d := &driver{inUse: inUse, counts: metrics.NewPlugin(prometheus.NewRegistry()),
		orphans: orphans.New(orphans.Options{}), publisher: a.publisher,
		preparer: prepare.New(prepare.Options{Store: store, Node: now, Specs: cdi.Dir(t.TempDir()),
			Listener: preparerListener{inUse: inUse}})}
	unprepare := func() error {
		t.Helper()
		errs, err := d.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{
			{NamespacedName: types.NamespacedName{Namespace: "team", Name: "c0"}, UID: "uid0"}})
		expect.NoError(t, err)
		return errs["uid0"]
	}
	held := func() bool {
		t.Helper()
		_, found, err := store.Get("uid0")
		expect.NoError(t, err)
		return found
	}
	for range 2 {
		if err := unprepare(); err == nil || !held() {
			t.Errorf("while the pod's process may still end by itself: %v, held: %t", err, held())
		}
		clock.Step(leftoverMost / 2)
	}
	if err := unprepare(); err != nil || !held() {
		t.Errorf("the process has outlived its pod: %v, held: %t", err, held())
	}
	now.pods["p0"] = false
	if err := unprepare(); err != nil || held() {
		t.Errorf("the process has ended: %v, held: %t", err, held())
	}
	// It is not remembered for ever.
	expect.Equal(t, 0, inUse.For("uid0"), "after its release the claim has been in use for")
}

// The pods of a claim are told what switches its limits off, and what would and may not.
func TestPodsAreToldOfLimits(t *testing.T) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "a", UID: "a1"}, {Resource: "pods", Name: "b", UID: "b1"},
	}
	for name, tc := range map[string]struct {
		off, kept []string
		want      string
	}{
		"neither": {nil, nil, ""},
		"off": {[]string{"r0"}, nil,
			`Normal GPUIsolationDisabled Claim c: the limits of requests ["r0"] are switched off`},
		"kept": {nil, []string{"r1"},
			`Warning GPUIsolationKept Claim c: the limits of requests ["r1"] apply, although CGPU_DISABLE or disableIsolation`},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			limits{events, claim.LimitsOffByClasses}.tell(c, prepare.Result{LimitsOff: tc.off, LimitsKept: tc.kept})
			close(events.Events)
			count := 0
			for event := range events.Events {
				count++
				if !strings.HasPrefix(event, tc.want) {
					t.Errorf("told %q, want %q", event, tc.want)
				}
			}
			expect.Equal(t, map[bool]int{true: 0, false: 2}[tc.want == ""], count,
				"Events, one for each of the pods that there are to tell")
		})
	}
}

// told remembers on what Events were.
type told struct {
	record.EventRecorder
	objects []string
}

func (r *told) Eventf(object runtime.Object, _, reason, _ string, _ ...any) {
	if ref, ok := object.(*corev1.ObjectReference); ok {
		r.objects = append(r.objects, reason+" "+ref.Kind+" "+ref.Name)
	}
}

// What is deleted and does not end says why, as far as it is known who uses it.
func TestUsersAreToldWhyAClaimIsNotTakenBack(t *testing.T) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "u"}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "a", UID: "a1"}}
	again := c.DeepCopy()
	again.UID = "other"
	const onClaim = "GPUUnprepareFailed ResourceClaim c"
	knows := func(c *resourceapi.ResourceClaim) preparetest.Cluster {
		return preparetest.Cluster{Claims: []*resourceapi.ResourceClaim{c}}
	}
	for name, test := range map[string]struct {
		api  preparetest.Cluster
		want []string
	}{
		"known":         {knows(c), []string{onClaim, "GPUUnprepareFailed Pod a"}},
		"created again": {knows(again), []string{onClaim}},
		"API server":    {preparetest.Cluster{Away: map[string]bool{"c": true}}, []string{onClaim}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &told{}
			unprepareFailures{r, test.api}.tell(t.Context(), kubeletplugin.NamespacedObject{
				NamespacedName: types.NamespacedName{Namespace: "team", Name: "c"}, UID: "u"}, errors.New("in use"))
			expect.Equal(t, test.want, r.objects, "told")
		})
	}
}
