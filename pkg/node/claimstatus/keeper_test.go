// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func share(device string, index int, units int64) claim.Grant {
	return claim.Grant{Request: "gpu", Pool: "n1/gpu", Device: device, ShareID: types.UID("share-" + device),
		Mode: mode.CoreMem, Units: units, CoresPercent: 30, Slots: 1, Isolation: "mps",
		GPU: claim.GPU{Index: index, UUID: "GPU-a", Model: "Tesla-V100", MemoryMiB: 16130}}
}

// One allocation result is one entry: a linked set is one device of several GPUs.
func TestEntries(t *testing.T) {
	set := claim.Grant{Request: "set", Pool: "n1/gpu", Device: "gpus-0-1", Mode: mode.Topology, Isolation: "whole-card",
		GPU: claim.GPU{Index: 0, UUID: "GPU-a", Model: "T4", MemoryMiB: 15360}}
	other := set
	other.GPU.Index, other.GPU.UUID = 1, "GPU-b"
	entries, err := Of([]claim.Grant{share("gpu-0-core-mem", 0, 3), set, other}, Facts{
		NotReady: "no daemon", Unhealthy: map[string]string{"gpus-0-1": "XID 79"},
		Level: func(g claim.Grant) string { return "level-" + g.Isolation },
	})
	expect.NoError(t, err)
	var got []v1alpha1.DeviceStatus
	for _, e := range entries {
		var data v1alpha1.DeviceStatus
		expect.NoError(t, json.Unmarshal(e.Data.Raw, &data))
		got = append(got, data)
	}
	want := []v1alpha1.DeviceStatus{
		{GPUs: []v1alpha1.DeviceStatusGPU{{Index: 0, UUID: "GPU-a", Model: "Tesla-V100"}}, Mode: "core-mem", MemoryMiB: 3226,
			CoresPercent: 30, Isolation: "mps", IsolationLevel: "level-mps"},
		{GPUs: []v1alpha1.DeviceStatusGPU{{Index: 0, UUID: "GPU-a", Model: "T4"}, {Index: 1, UUID: "GPU-b", Model: "T4"}},
			Mode: "topology", MemoryMiB: 30720, Isolation: "whole-card", IsolationLevel: "level-whole-card"},
	}
	expect.Equal(t, want, got, "data")
	expect.Equal(t, []string{"Ready=False", "Healthy=True", "Ready=False", "Healthy=False"}, conditions(entries),
		"conditions")
}

// After a boot a GPU may have another index than when it was granted, by which its device is named.
func TestEntryOfAGPUWithAnotherIndex(t *testing.T) {
	entries, err := Of([]claim.Grant{share("gpu-2-core-mem", 2, 3)},
		Facts{Machine: &gpu.Machine{GPUs: []gpu.GPU{{Index: 1, UUID: "GPU-a"}}}})
	expect.NoError(t, err)
	var data v1alpha1.DeviceStatus
	expect.NoError(t, json.Unmarshal(entries[0].Data.Raw, &data))
	if entries[0].Device != "gpu-2-core-mem" || data.GPUs[0].Index != 1 {
		t.Errorf("device %s has GPUs %+v, want index 1", entries[0].Device, data.GPUs)
	}
}

func conditions(entries []resourceapi.AllocatedDeviceStatus) []string {
	var out []string
	for _, e := range entries {
		for _, c := range e.Conditions {
			out = append(out, c.Type+"="+string(c.Status))
		}
	}
	return out
}

// site is an API server with a claim that has an entry of another driver, and a Keeper.
type site struct {
	*Keeper
	t         *testing.T
	client    *fake.Clientset
	clock     *clocktesting.FakeClock
	unhealthy string
	prepared  bool
	written   int
}

func newSite(t *testing.T) *site {
	foreign := resourceapi.AllocatedDeviceStatus{Driver: "nic.example.com", Pool: "n1", Device: "nic"}
	s := &site{t: t, clock: clocktesting.NewFakeClock(time.Unix(1000, 0)), prepared: true,
		client: fake.NewClientset(&resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "uid"},
			Status:     resourceapi.ResourceClaimStatus{Devices: []resourceapi.AllocatedDeviceStatus{foreign}},
		})}
	s.restart()
	return s
}

// restart makes another Keeper, as another process has.
func (s *site) restart() {
	s.Keeper = New(Options{Client: s.client.ResourceV1(), Clock: s.clock, Written: func(error) { s.written++ },
		Releases: &Releases{},
		Prepared: func(context.Context) ([]Claim, error) {
			if !s.prepared {
				return nil, nil
			}
			devices, err := Of([]claim.Grant{share("gpu-0-core-mem", 0, 3)}, Facts{
				Unhealthy: map[string]string{"gpu-0-core-mem": s.unhealthy}})
			return []Claim{{Namespace: "ns", Name: "c", UID: "uid", Devices: devices}}, err
		}})
}

// synced has the Keeper work once, and says how often it wrote.
func (s *site) synced() int {
	s.t.Helper()
	before := s.written
	expect.NoError(s.t, s.sync(s.t.Context()))
	return s.written - before
}

// shows are the conditions that the claim has, with their times, and how many entries of
// others.
func (s *site) shows() (own []resourceapi.AllocatedDeviceStatus, others int) {
	s.t.Helper()
	c := apitest.Get[*resourceapi.ResourceClaim](s.t, s.client, "ns", "c")
	own = ours(c.Status.Devices)
	return own, len(c.Status.Devices) - len(own)
}

func (s *site) wants(want ...string) {
	s.t.Helper()
	own, others := s.shows()
	if diff := expect.Diff(want, conditions(own)); diff != nil || others != 1 {
		s.t.Errorf("%d entries of others, want 1; conditions %v", others, diff)
	}
}

// What is prepared is written once, again when it changed, and taken away when it is not
// prepared any more. Entries of other drivers stay.
func TestStatusFollowsWhatIsPrepared(t *testing.T) {
	s := newSite(t)
	expect.Equal(t, 1, s.synced(), "times written")
	s.wants("Ready=True", "Healthy=True")
	s.clock.Step(time.Hour)
	expect.Equal(t, 0, s.synced(), "times written though nothing changed")
	s.unhealthy = "XID 79"
	s.synced()
	s.wants("Ready=True", "Healthy=False")
	own, _ := s.shows()
	for i, want := range []int64{1000, 1000 + 3600} {
		expect.Equal(t, want, own[0].Conditions[i].LastTransitionTime.Unix(),
			"condition %s is so since", own[0].Conditions[i].Type)
	}
	s.unhealthy = ""
	expect.Equal(t, 0, s.synced(), "times written soon after the last time")
	s.clock.Step(changeAfter)
	s.synced()
	s.wants("Ready=True", "Healthy=True")

	s.prepared = false
	s.synced()
	s.wants("Ready=True", "Healthy=True")
	s.clock.Step(releaseAfter)
	s.synced()
	s.wants()
	expect.Equal(t, 0, len(s.claims), "claims are kept in mind")
}

// Another process finds what is there already, and leaves its times.
func TestStatusSurvivesARestart(t *testing.T) {
	s := newSite(t)
	s.synced()
	s.clock.Step(time.Hour)
	s.restart()
	expect.Equal(t, 0, s.synced(), "times written after a restart")
	s.clock.Step(time.Hour)
	s.unhealthy = "lost"
	s.restart()
	s.synced()
	own, _ := s.shows()
	expect.Equal(t, 1000, own[0].Conditions[0].LastTransitionTime.Unix(), "since")
}

// What cannot be written is tried again, ever less often; what there is nothing to be
// written to is not.
func TestStatusThatCannotBeWritten(t *testing.T) {
	s := newSite(t)
	failing := error(apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "c", nil))
	tries := 0
	apitest.Answer(s.client, "patch", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		tries++
		return failing != nil, nil, failing
	})
	for range 600 {
		_ = s.sync(t.Context())
		s.clock.Step(time.Second)
	}
	if tries < 6 || tries > 8 {
		t.Errorf("tried %d times in 10 minutes, want some 7", tries)
	}
	failing = nil
	s.clock.Step(retryMost)
	s.synced()
	s.wants("Ready=True", "Healthy=True")

	gone := newSite(t)
	tries = 0
	gone.client.PrependReactor("patch", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		tries++
		return true, nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), "c")
	})
	for range 60 {
		gone.synced()
		gone.clock.Step(time.Second)
	}
	expect.Equal(t, 1, tries, "times tried to write to what is gone")
}

// A burst is looked at once, when it is over, and not while the kubelet waits for an answer.
func TestRunCollectsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		var changed signal.Broadcast
		k := New(Options{Clock: clock.RealClock{}, Changed: &changed, Releases: &Releases{},
			Prepared: func(context.Context) ([]Claim, error) {
				looks.Add(1)
				return nil, nil
			}})
		go k.Run(t.Context())
		after := func(d time.Duration, want int32) {
			t.Helper()
			time.Sleep(d) // in the bubble's time
			synctest.Wait()
			expect.Equal(t, want, looks.Load(), "times looked")
		}
		after(0, 1)
		for range 100 {
			changed.Send()
		}
		after(collect-time.Millisecond, 1)
		after(time.Millisecond, 2)
		after(lookForNew-collect-time.Millisecond, 2)
		after(time.Millisecond, 3)
	})
}

// A claim that is prepared again may have been deallocated meanwhile, which took away what it
// showed.
func TestStatusOfAClaimThatIsPreparedAgain(t *testing.T) {
	for name, meanwhile := range map[string]func(s *site){
		"it was seen not to be": func(s *site) {
			s.prepared = false
			s.synced()
		},
		"nobody looked meanwhile": func(s *site) { s.Releases.Released("uid") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.synced()
			meanwhile(s)
			s.deallocated()
			s.prepared = true
			expect.Equal(t, 1, s.synced(), "writes when it is prepared again")
			own, _ := s.shows()
			expect.Equal(t, 1, len(own), "devices that it shows")
			expect.Equal(t, 0, s.synced(), "times written though nothing changed")
		})
	}
}

// deallocated has the claim show nothing any more.
func (s *site) deallocated() {
	s.t.Helper()
	apitest.Change(s.t, s.client, "ns", "c", func(c *resourceapi.ResourceClaim) { c.Status.Devices = nil })
}
