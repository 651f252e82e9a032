// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

func instanceAt(start int, uuid string) gpu.Instance {
	return gpu.Instance{InstanceID: gpu.InstanceID{GI: 7 + start}, UUID: uuid, Profile: "1g.10gb", Start: start, Size: 1,
		MemoryMiB: 9728}
}

// holding is the record of a claim that holds the instance of GPU 2.
func holding(i gpu.Instance) state.Record {
	return state.Record{UID: "u", Namespace: "team", Name: "c", Grants: []claim.Grant{{Mode: mode.MIG,
		Device: "gpu-2-mig-1g-10gb-" + string(rune('0'+i.Start)), GPU: claim.GPU{Index: 2, UUID: i.UUID,
			MIG: &claim.Instance{ParentUUID: "GPU-2", Profile: i.Profile, GI: i.GI, Start: i.Start, Size: i.Size}}}}}
}

// twoPlaces are where instances can be made of a GPU that is cut on demand.
func twoPlaces() []gpu.Profile {
	return []gpu.Profile{{Kind: gpu.Instance{ProfileID: 19, Profile: "1g.10gb", Size: 1}, Starts: []int{0, 1}, Count: 2}}
}

// cutGPU is GPU 2 in MIG mode.
func cutGPU(profiles []gpu.Profile, instances ...gpu.Instance) []gpu.Partitioned {
	return []gpu.Partitioned{{GPU: gpu.GPU{Index: 2, UUID: "GPU-2"}, Instances: instances, Profiles: profiles}}
}

func (p plan) taints(device string) string {
	all := devicesIn(p.resources)
	at := slices.IndexFunc(all, func(d resourceapi.Device) bool { return d.Name == device })
	if at < 0 {
		return "not published"
	}
	var out []string
	for _, t := range all[at].Taints {
		out = append(out, strings.TrimPrefix(t.Key, v1alpha1.DriverName+"/")+"="+t.Value+":"+string(t.Effect))
	}
	return strings.Join(out, " ")
}

// What is published while GPUs are cut again, with a claim that holds GPU 2's instance MIG-a at slice 0.
func TestRepartitioningWhileHeld(t *testing.T) {
	held := instanceAt(0, "MIG-a")
	larger := gpu.Instance{InstanceID: gpu.InstanceID{GI: 7}, UUID: "MIG-l", Profile: "2g.20gb", Start: 2, Size: 2}
	for name, test := range map[string]struct {
		now            []gpu.Instance
		whole          bool // GPU 2 left MIG mode
		want           map[string]string
		devices, event string
	}{
		"as it was": {now: []gpu.Instance{held, instanceAt(1, "MIG-b")},
			devices: "gpu-0 gpu-1 gpu-2-mig-1g-10gb-0 gpu-2-mig-1g-10gb-1"},
		"a free one gone, a new one": {now: []gpu.Instance{held, instanceAt(3, "MIG-n")},
			devices: "gpu-0 gpu-1 gpu-2-mig-1g-10gb-0 gpu-2-mig-1g-10gb-3"},
		"gone": {now: []gpu.Instance{instanceAt(1, "MIG-b")}, devices: "gpu-0 gpu-1 gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0!",
			want:  map[string]string{"gpu-2-mig-1g-10gb-0": "unhealthy=mig-instance-gone:NoSchedule"},
			event: "GPU 2's 1g.10gb at slice 0 (MIG-a) is not there any more"},
		"another one in its place": {now: []gpu.Instance{instanceAt(0, "MIG-n")}, devices: "gpu-0 gpu-1 gpu-2-mig-1g-10gb-0!",
			want:  map[string]string{"gpu-2-mig-1g-10gb-0": "withdrawn=:NoSchedule unhealthy=mig-instance-replaced:NoSchedule"},
			event: "claim team/c holds it"},
		"its id elsewhere": {now: []gpu.Instance{larger}, devices: "gpu-0 gpu-1 gpu-2-mig-2g-20gb-2! gpu-2-mig-1g-10gb-0!",
			want: map[string]string{"gpu-2-mig-2g-20gb-2": "withdrawn=:NoSchedule"}, event: "MIG-a"},
		"without compute instance": {now: []gpu.Instance{{InstanceID: gpu.InstanceID{GI: 7, CI: gpu.NoCI}, Profile: "1g.10gb",
			Size: 1, LeftOut: "it has no compute instance"}}, devices: "gpu-0 gpu-1 gpu-2-mig-1g-10gb-0!",
			want: map[string]string{"gpu-2-mig-1g-10gb-0": "unhealthy=mig-instance-gone:NoSchedule"}, event: "MIG-a"},
		"not in MIG mode": {whole: true, devices: "gpu-0 gpu-1 gpu-2! gpu-2-mig-1g-10gb-0!",
			want: map[string]string{"gpu-2": "withdrawn=:NoSchedule"}, event: "MIG-a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := found(t, "mig", mode.Exclusive)
			if test.whole {
				s.machine.GPUs = append(s.machine.GPUs, gpu.GPU{Index: 2, UUID: "GPU-2", MemoryMiB: 81920})
			} else {
				s.machine.Partitioned = cutGPU(nil, test.now...)
			}
			s.records = []state.Record{holding(held)}
			p, err := s.plan()
			expect.NoError(t, err)
			expect.Equal(t, test.devices, p.devices(), "published")
			for device, want := range test.want {
				expect.Equal(t, want, p.taints(device), "%s has", device)
			}
			got := p.told(v1alpha1.ReasonInstanceGone)
			expect.Says(t, got, test.event)
			if _, told := p.goneClaims["u"]; told != (test.event != "") {
				t.Errorf("the claim is told: %v", p.goneClaims)
			}
		})
	}
}

// A GPU that was whole, and is in MIG mode while the claim that had it goes on.
func TestInstancesOfAGPUThatIsHeldWhole(t *testing.T) {
	s := found(t, "default", mode.Exclusive)
	s.machine.Partitioned = cutGPU(nil, instanceAt(0, "MIG-a"))
	s.records = []state.Record{{UID: "u", Grants: []claim.Grant{{Mode: mode.Exclusive, Device: "gpu-2",
		GPU: claim.GPU{Index: 2, UUID: "GPU-2"}}}}}
	p, err := s.plan()
	if err != nil || p.taints("gpu-2-mig-1g-10gb-0") != "withdrawn=:NoSchedule" {
		t.Errorf("%s, %v", p.taints("gpu-2-mig-1g-10gb-0"), err)
	}
}

// Instances are in the way of no mode: they stay open, and nobody waits for who has them.
func TestInstancesDoNotKeepANodeInItsMode(t *testing.T) {
	s := found(t, "default", mode.Share)
	s.machine.Partitioned = cutGPU(nil, instanceAt(0, "MIG-a"))
	p, err := s.plan()
	if want := "gpu-0-share! gpu-1-share! gpu-2-mig-1g-10gb-0"; err != nil || p.devices() != want {
		t.Errorf("published %s, %v; want %s", p.devices(), err, want)
	}
	stored := []resourceapi.ResourceSlice{{Spec: resourceapi.ResourceSliceSpec{
		Devices: p.resources.Pools["n1/gpu"].Slices[0].Devices}}}
	expect.Equal(t, true, allClosed(stored), "the instances are closed when the node is stored")
	if i := firstAllocated(holding(instanceAt(0, "MIG-a")).Grants); i >= 0 {
		t.Error("a claim for an instance keeps the node in its mode")
	}
}

func TestWhatOfMIGIsNotOfferedIsTold(t *testing.T) {
	s := found(t, "mig", mode.Exclusive)
	s.machine.Partitioned = []gpu.Partitioned{{GPU: gpu.GPU{Index: 2, UUID: "GPU-2"}},
		{GPU: gpu.GPU{Index: 3, UUID: "GPU-3"}, Instances: []gpu.Instance{instanceAt(0, "MIG-a"),
			{Profile: "2g.20gb", Start: 4,
				Size: 2, LeftOut: "it has 2 compute instances"}}}}
	p, err := s.plan()
	want := "Not offered: GPU 2 is in MIG mode and not cut into instances, GPU 3's 2g.20gb at slices 4-5: it has 2 " +
		"compute instances"
	if got := p.told(v1alpha1.ReasonInstancesLeftOut); err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("told %q, %v", got, err)
	}
	at := slices.IndexFunc(p.events, func(e event) bool { return e.reason == v1alpha1.ReasonInstancesLeftOut })
	expect.Equal(t, true, p.events[at].good, "it is no warning, as it may be meant so")
	got := p.published(s)
	if len(got) != 1 || got[0].message != "2 GPUs are offered in mode exclusive, and 1 MIG instances of 2 GPUs" {
		t.Errorf("published: %v", got)
	}
}

// messages are what is told of each device.
func messages(all []DeviceHealth) map[string]string {
	out := map[string]string{}
	for _, d := range all {
		out[d.Device] = d.Message
	}
	return out
}

func TestHealthOfInstances(t *testing.T) {
	p := New(Options{NodeName: "n1", Clock: clock.RealClock{}})
	p.SetMachine(&gpu.Machine{Partitioned: []gpu.Partitioned{
		{GPU: gpu.GPU{Index: 2, UUID: "GPU-2"}, Instances: []gpu.Instance{instanceAt(0, "MIG-a"), instanceAt(1, "MIG-b")}},
		{GPU: gpu.GPU{Index: 3, UUID: "GPU-3"}, Instances: []gpu.Instance{instanceAt(0, "MIG-c")}}}})
	p.SetHealth(map[string]health.Unhealthy{"MIG-b": {Message: "XID 94"}, "GPU-3": {Message: "XID 79"}})
	other := holding(instanceAt(0, "MIG-old"))
	third := holding(instanceAt(0, "MIG-c"))
	third.Grants[0].Device = "gpu-3-mig-1g-10gb-0"
	got := messages(p.Health([]state.Record{holding(instanceAt(1, "MIG-b")), other, third,
		holding(instanceAt(4, "MIG-gone"))}))
	want := map[string]string{"gpu-2-mig-1g-10gb-1": "XID 94", "gpu-3-mig-1g-10gb-0": "XID 79",
		"gpu-2-mig-1g-10gb-0": "the MIG instance MIG-old is not there any more: another one, MIG-a, is in its place",
		"gpu-2-mig-1g-10gb-4": "the MIG instance is not there any more MIG-gone"}
	expect.Equal(t, want, got, "messages of health")
}

// A device plugin that serves instances, by whatever profile, has the node to itself.
func TestBesideADevicePluginForMIG(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"nvidia.com/mig-1g.10gb": resource.MustParse("2")},
		Capacity:    corev1.ResourceList{"nvidia.com/mig-1g.10gb": resource.MustParse("2")}}}
	f := factsOf(node, "")
	if !slices.Equal(f.devicePlugin, []string{"nvidia.com/mig-1g.10gb"}) || !f.hadDevicePlugin {
		t.Errorf("%+v", f)
	}
}

// Instances that are made for claims, and destroyed after them: what is offered stays the same, whatever is there.
func TestInstancesOnDemand(t *testing.T) {
	place := gpu.Place{ProfileID: 19, Start: 0, Size: 1}
	mine := instanceAt(0, "MIG-a")
	unmade := mine
	unmade.UUID, unmade.CI, unmade.LeftOut = "", gpu.NoCI, "it has no compute instance"
	record := func(phase state.Phase, uuid string) state.Record {
		r := holding(mine)
		r.Phase, r.Grants[0].GPU.UUID, r.Grants[0].GPU.MIG.Made = phase, uuid, true
		r.Effects = []state.Effect{{GPU: "GPU-2", Instance: &state.MadeInstance{Place: place, UUID: uuid}}}
		return r
	}
	const offered = "gpu-0 gpu-1 gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0"
	for name, test := range map[string]struct {
		now     []gpu.Instance
		records []state.Record
		devices string
		gone    bool
	}{
		"not cut":    {devices: offered},
		"to be made": {records: []state.Record{record(state.Preparing, "")}, devices: offered},
		"half made": {now: []gpu.Instance{unmade}, records: []state.Record{record(state.Preparing,
			"")}, devices: offered},
		"made, not read yet": {records: []state.Record{record(state.Preparing, "MIG-a")}, devices: offered},
		"made": {now: []gpu.Instance{mine}, records: []state.Record{record(state.Prepared,
			"MIG-a")}, devices: offered},
		"destroyed, not read yet": {now: []gpu.Instance{mine}, records: []state.Record{record(state.Preparing,
			"MIG-a")}, devices: offered},
		"gone": {records: []state.Record{record(state.Prepared, "MIG-a")}, gone: true,
			devices: "gpu-0 gpu-1 gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0!"},
		"somebody else's": {now: []gpu.Instance{mine}, devices: "gpu-0 gpu-1 gpu-2-mig-1g-10gb-0 gpu-2-mig-1g-10gb-1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := found(t, "mig", mode.Exclusive)
			s.machine.Partitioned = cutGPU(twoPlaces(), test.now...)
			s.records = test.records
			p, err := s.plan()
			if err != nil || p.devices() != test.devices {
				t.Errorf("published %s, %v; want %s", p.devices(), err, test.devices)
			}
			if told := p.told(v1alpha1.ReasonInstanceGone); (told != "") != test.gone {
				t.Errorf("the node is told %q", told)
			}
			expect.Equal(t, "", p.told(v1alpha1.ReasonInstancesLeftOut), "the node is told")
			if got := p.published(s); len(got) != 1 ||
				got[0].message != "2 GPUs are offered in mode exclusive, and 1 GPUs whose MIG instances are made "+
					"when claims need them" {
				t.Errorf("published: %v", got)
			}
		})
	}
}

// An instance that nobody has made yet is as well as its GPU; one that a claim had, and that is gone, is not.
func TestHealthOfInstancesOnDemand(t *testing.T) {
	p := New(Options{NodeName: "n1", Clock: clock.RealClock{}})
	p.SetMachine(&gpu.Machine{Partitioned: append(cutGPU(twoPlaces(), instanceAt(1, "MIG-b")),
		gpu.Partitioned{GPU: gpu.GPU{Index: 3, UUID: "GPU-3"}, Profiles: twoPlaces()})})
	p.SetHealth(map[string]health.Unhealthy{"GPU-3": {Message: "XID 79"}})
	record := func(device, uuid string) state.Record {
		r := holding(instanceAt(0, uuid))
		r.Grants[0].Device, r.Grants[0].GPU.MIG.Made = device, true
		return r
	}
	got := messages(p.Health([]state.Record{record("gpu-2-mig-1g-10gb-0", ""), record("gpu-2-mig-1g-10gb-1", "MIG-b"),
		record("gpu-3-mig-1g-10gb-0", ""), record("gpu-3-mig-1g-10gb-1", "MIG-gone")}))
	want := map[string]string{"gpu-2-mig-1g-10gb-0": "", "gpu-2-mig-1g-10gb-1": "", "gpu-3-mig-1g-10gb-0": "XID 79",
		"gpu-3-mig-1g-10gb-1": "the MIG instance is not there any more MIG-gone"}
	expect.Equal(t, want, got, "messages of health")
}

// An instance whose claim is gone and that cannot be destroyed closes all that overlaps it, and nothing else: with or
// without its compute instance.
func TestInstanceThatCannotBeDestroyed(t *testing.T) {
	profiles := []gpu.Profile{
		{Kind: gpu.Instance{ProfileID: 19, Profile: "1g.10gb", Size: 1}, Starts: []int{0, 1, 2}, Count: 3},
		{Kind: gpu.Instance{ProfileID: 14, Profile: "2g.20gb", Size: 2}, Starts: []int{0, 2}, Count: 2}}
	left := instanceAt(0, "MIG-a")
	left.ProfileID = 19
	withoutCompute := left
	withoutCompute.UUID, withoutCompute.CI, withoutCompute.LeftOut = "", gpu.NoCI, "it has no compute instance"
	r := holding(left)
	r.Phase, r.Grants[0].GPU.MIG.Made, r.Grants[0].GPU.MIG.ProfileID = state.Preparing, true, 19
	for name, there := range map[string]gpu.Instance{"whole": left, "half": withoutCompute} {
		t.Run(name, func(t *testing.T) {
			s := found(t, "mig", mode.Exclusive)
			s.machine.Partitioned = cutGPU(profiles, there)
			s.records = []state.Record{r}
			s.orphans = map[types.UID]string{"u": "IN_USE"}
			p, err := s.plan()
			want := "gpu-0 gpu-1 gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0! gpu-2-mig-1g-10gb-2 gpu-2-mig-2g-20gb-2 " +
				"gpu-2-mig-2g-20gb-0!"
			if err != nil || p.devices() != want {
				t.Errorf("published %s, %v; want %s", p.devices(), err, want)
			}
			expect.Equal(t, "held-without-claim=:NoSchedule", p.taints("gpu-2-mig-2g-20gb-0"), "taints")
			told := p.told(v1alpha1.ReasonHeldByGoneClaim)
			expect.Says(t, told, "GPU 2's 1g.10gb at slice 0 by claim team/c (IN_USE)")
		})
	}
}

// During an update the process before makes an instance after this one has read the GPUs.
func TestInstanceThatWasMadeSinceTheGPUsWereRead(t *testing.T) {
	machine := func(instances ...gpu.Instance) *gpu.Machine {
		return &gpu.Machine{Partitioned: cutGPU(twoPlaces(), instances...)}
	}
	mine := instanceAt(0, "MIG-a")
	const there, gone = "gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0", "gpu-2-mig-1g-10gb-1 gpu-2-mig-1g-10gb-0!"
	for name, test := range map[string]struct {
		next func(b *bench)
		want string
	}{
		"read again, and there":     {func(b *bench) { b.SetMachine(machine(mine)) }, there},
		"read again, and otherwise": {func(b *bench) { b.SetMachine(machine(instanceAt(1, "MIG-b"))) }, gone},
		"read again, and as it was": {func(b *bench) { b.clock.Step(rereadLimit) }, gone},
		"there, and destroyed by somebody": {func(b *bench) {
			b.SetMachine(machine(mine))
			b.reconciled(t, true, there)
			b.SetMachine(machine())
		}, gone},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			rescans := make(chan struct{}, 10)
			b.Rescan = rescans
			b.SetMachine(machine())
			b.mode("mig")
			b.reconciled(t, true, there)
			r := holding(mine)
			r.Phase, r.Grants[0].GPU.MIG.Made = state.Prepared, true
			b.records = []state.Record{r}
			for range 2 {
				b.reconciled(t, false, there)
			}
			if told := b.events.current[v1alpha1.ReasonInstanceGone]; told != "" || len(rescans) != 1 {
				t.Errorf("told %q, the GPUs are read again %d times, want once", told, len(rescans))
			}
			test.next(b)
			b.reconciled(t, true, test.want)
			if told := b.events.current[v1alpha1.ReasonInstanceGone]; (told != "") != (test.want == gone) || len(rescans) != 1 {
				t.Errorf("told %q, the GPUs are read again %d times, want once", told, len(rescans))
			}
		})
	}
}

// Of an instance whose claim has ended nothing stays known, also on a node without MIG: the next claim that has it is
// waited for, and told, as the first was.
func TestInstanceOfAClaimThatHasEndedIsForgotten(t *testing.T) {
	b := newBench(t)
	recorder := record.NewFakeRecorder(10)
	rescans := make(chan struct{}, 10)
	b.ClaimEvents, b.Rescan = report.New(recorder, b.clock), rescans
	b.mode("mig")
	r := holding(instanceAt(0, "MIG-a"))
	r.Phase, r.Grants[0].GPU.MIG.Made = state.Prepared, true
	for before := range 2 {
		b.records = []state.Record{r}
		b.reconciled(t, false, "gpu-0 gpu-1")
		b.clock.Step(rereadLimit)
		b.reconciled(t, true, "gpu-0 gpu-1")
		if len(rescans) != before+1 || len(recorder.Events) != before+1 {
			t.Errorf("the GPUs are read again %d times, the claim is told %d times, want %d", len(rescans), len(recorder.Events),
				before+1)
		}
		b.records = nil
		b.reconciled(t, true, "gpu-0 gpu-1")
	}
}
