// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"testing"

	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Of the GPUs a, b and c, of which a claim holds c as GPU 2, b is not counted any more, so that c is GPU 1: the
// scheduler knows of no claim that holds it.
func TestRenamedGPUsTakeNoClaims(t *testing.T) {
	const closed = "withdrawn=held-as-gpu-2:NoSchedule"
	share := grantOf(mode.Share, "gpu-2-share", 2, "c")
	share.Units, share.Slots = 1, 1
	admin := share
	admin.Admin = true
	for name, test := range map[string]struct {
		label     string
		published mode.Mode
		grants    []claim.Grant
		given     func(m *gpu.Machine)
		devices   string
		taints    map[string]string
	}{
		"whole": {label: "default", published: mode.Exclusive,
			grants:  []claim.Grant{grantOf(mode.Exclusive, "gpu-2", 2, "c")},
			devices: "gpu-0 gpu-1!", taints: map[string]string{"gpu-1": closed}},
		"as it was": {label: "default", published: mode.Exclusive,
			grants: []claim.Grant{grantOf(mode.Exclusive, "gpu-1", 1, "c")}, devices: "gpu-0 gpu-1"},
		"the one that is gone": {label: "default", published: mode.Exclusive,
			grants: []claim.Grant{grantOf(mode.Exclusive, "gpu-1", 1, "b")}, devices: "gpu-0 gpu-1"},
		"shared": {label: "share", published: mode.Share, grants: []claim.Grant{share}, devices: "gpu-0-share gpu-1-share!",
			taints: map[string]string{"gpu-1-share": closed}},
		"by an administrator": {label: "share", published: mode.Share, grants: []claim.Grant{admin},
			devices: shares},
		"a set": {label: "topology", published: mode.Topology, grants: []claim.Grant{
			grantOf(mode.Topology, "gpus-1-2", 1, "b"), grantOf(mode.Topology, "gpus-1-2", 2, "c")},
			given: func(m *gpu.Machine) {
				m.GPUs = append(m.GPUs, gpu.GPU{Index: 2, UUID: "d", MemoryMiB: 16130})
				m.Links = []gpu.Link{{A: 0, B: 1, Kind: gpu.LinkNVLink, GBps: 50}}
			},
			devices: "gpu-0-topology gpu-1-topology! gpu-2-topology gpus-0-1!",
			taints:  map[string]string{"gpu-1-topology": closed, "gpus-0-1": closed}},
		"one of its instances": {label: "default", published: mode.Exclusive, grants: holding(instanceAt(0, "MIG-a")).Grants,
			given: func(m *gpu.Machine) {
				m.GPUs, m.Partitioned = m.GPUs[:1], []gpu.Partitioned{{GPU: gpu.GPU{Index: 1, UUID: "GPU-2"},
					Instances: []gpu.Instance{instanceAt(0, "MIG-a"), instanceAt(1, "MIG-b")}}}
			},
			devices: "gpu-0 gpu-1-mig-1g-10gb-0! gpu-1-mig-1g-10gb-1!",
			taints:  map[string]string{"gpu-1-mig-1g-10gb-0": closed, "gpu-1-mig-1g-10gb-1": closed}},
		"out of MIG mode, one of its instances": {label: "default", published: mode.Exclusive,
			grants: holding(instanceAt(0, "MIG-a")).Grants, given: func(m *gpu.Machine) { m.GPUs[1].UUID = "GPU-2" },
			devices: "gpu-0 gpu-1!", taints: map[string]string{"gpu-1": closed}},
	} {
		t.Run(name, func(t *testing.T) {
			s := found(t, test.label, test.published)
			s.machine.GPUs[0].UUID, s.machine.GPUs[1].UUID = "a", "c"
			if test.given != nil {
				test.given(s.machine)
			}
			s.retained.machine = s.machine
			s.records = []state.Record{{UID: "u", Grants: test.grants}}
			p, err := s.plan()
			if err != nil || p.devices() != test.devices {
				t.Errorf("published %s, %v; want %s", p.devices(), err, test.devices)
			}
			for device, want := range test.taints {
				expect.Equal(t, want, p.taints(device), "%s has", device)
			}
		})
	}
}

// Where the records cannot be listed for a while, GPUs stay closed that claims held by other names before.
func TestRenamedGPUsWhileTheRecordsCannotBeListed(t *testing.T) {
	b := newBench(t)
	b.mode("default")
	b.records = []state.Record{{UID: "u", Grants: []claim.Grant{grantOf(mode.Exclusive, "gpu-2", 2, "GPU-1")}}}
	b.reconciled(t, true, "gpu-0 gpu-1!")
	b.unlisted = errors.New("input/output error")
	for _, test := range []struct {
		gpus []gpu.GPU
		want string
	}{
		{b.machine.GPUs, "gpu-0 gpu-1!"},
		{[]gpu.GPU{{Index: 0, UUID: "GPU-1", MemoryMiB: 16130}}, "gpu-0!"},
	} {
		b.SetMachine(&gpu.Machine{GPUs: test.gpus})
		// It is published, and told that the records are missed.
		_, err := b.reconcile(t.Context())
		expect.ErrorIs(t, err, b.unlisted)
		expect.Equal(t, test.want, b.devices(t), "published")
	}
	b.unlisted, b.records = nil, nil
	b.reconciled(t, true, "gpu-0")
}

// No other GPU waits until one that takes no claims has caught up.
func TestRenamedGPUHoldsNothingBack(t *testing.T) {
	s := found(t, "share", mode.Share)
	share := grantOf(mode.Share, "gpu-0-share", 0, "GPU-0")
	share.Units, share.Slots = 8, 1
	other := grantOf(mode.Share, "gpu-2-share", 2, "GPU-1")
	other.Units, other.Slots = 1, 1
	s.records = []state.Record{{UID: "u", Grants: []claim.Grant{share, other}}}
	placed, _, err := s.place(mode.Share, mode.Spread, s.asked.served, held.Reserved{})
	if err != nil || placed.Limits[mode.Share]["GPU-0"].Units != 15 {
		t.Errorf("placed %+v, %v: GPU 0 has 15 units to share", placed, err)
	}
}

// Pods are told of the GPUs that they have, under the names that these had when they were allocated.
func TestHealthOfRenamedGPUs(t *testing.T) {
	p := New(Options{NodeName: "n1", Clock: clock.RealClock{}})
	machine := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "a", MemoryMiB: 16130},
		{Index: 1, UUID: "c", MemoryMiB: 16130}, {Index: 2, UUID: "d", MemoryMiB: 16130}},
		Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 3, UUID: "GPU-2"},
			Instances: []gpu.Instance{instanceAt(0, "MIG-a")}}},
		Faults: []gpu.Fault{{Index: 4, UUID: "f", Message: "it is lost"}}}
	p.SetMachine(machine)
	p.SetHealth(map[string]health.Unhealthy{"d": {Message: "XID 79"}, "GPU-2": {Message: "XID 94"}})
	served, err := servedModes(mode.Offer{Mode: mode.Share}, isolation.NewRegistry(isolation.Config{}))
	expect.NoError(t, err)
	p.noteHealth(buildPool(machine, mode.Share, served, held.Reserved{}, nil, devices.Options{Pool: p.pool()}))
	granted := func(grants ...claim.Grant) state.Record { return state.Record{Grants: grants} }
	const gone = "the GPU is not there any more"
	for name, test := range map[string]struct {
		records []state.Record
		want    map[string]string
	}{
		"nobody has any": {nil, map[string]string{"gpu-0-share": "", "gpu-1-share": "", "gpu-2-share": "XID 79"}},
		"the one that has another name": {[]state.Record{granted(grantOf(mode.Share, "gpu-2-share", 2, "c"))},
			map[string]string{"gpu-2-share": ""}},
		"that, and the one that has the name now": {[]state.Record{granted(grantOf(mode.Share, "gpu-2-share", 2, "c")),
			granted(grantOf(mode.Share, "gpu-2-share", 2, "d"))}, map[string]string{"gpu-2-share": "XID 79"}},
		"the one that is gone": {[]state.Record{granted(grantOf(mode.Share, "gpu-1-share", 1, "b"))},
			map[string]string{"gpu-1-share": gone}},
		"one that is sick, by a name that is gone": {[]state.Record{granted(grantOf(mode.Share, "gpu-3-share", 3, "d"))},
			map[string]string{"gpu-3-share": "XID 79"}},
		"one that is lost, by another's name": {[]state.Record{granted(grantOf(mode.Share, "gpu-0-share", 0, "f"))},
			map[string]string{"gpu-0-share": "it is lost"}},
		"a set with it": {[]state.Record{granted(grantOf(mode.Topology, "gpus-0-3", 0, "a"),
			grantOf(mode.Topology, "gpus-0-3", 3, "d"))}, map[string]string{"gpus-0-3": "XID 79"}},
		"an instance of it": {[]state.Record{holding(instanceAt(0, "MIG-a"))},
			map[string]string{"gpu-2-mig-1g-10gb-0": "XID 94"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			for _, d := range p.Health(test.records) {
				if _, asked := test.want[d.Device]; asked {
					got[d.Device] = d.Message
				}
			}
			expect.Equal(t, test.want, got, "messages of health")
		})
	}
}
