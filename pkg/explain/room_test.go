// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// engine spares the tests the compiling.
var engine = scheduling.NewEngine(scheduling.ExpressionsMost)

// stage is a cluster that is known twice: as the situation that is explained, and as nodes
// of which the test allocates.
type stage struct {
	scheduling.Snapshot
	nodes map[string]*allocatortest.Node
}

func newStage(classes []*resourceapi.DeviceClass) *stage {
	return &stage{scheduling.Snapshot{Classes: classes}, map[string]*allocatortest.Node{}}
}

// allClasses are those of a cluster with GPUs of three models.
func allClasses(t testing.TB) []*resourceapi.DeviceClass {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	for _, model := range []string{"NVIDIA-A10", "Tesla-V100-SXM2-16GB", "NVIDIA-A100-SXM4-80GB"} {
		of, err := deviceclasses.Model(model, []mode.Mode{mode.Share})
		expect.NoError(t, err)
		classes = append(classes, of...)
	}
	return classes
}

func (s *stage) add(name string, resources resourceslice.DriverResources, taints ...corev1.Taint) {
	s.Nodes = append(s.Nodes, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Spec:       corev1.NodeSpec{Taints: taints},
	})
	for poolName, pool := range resources.Pools {
		for i, slice := range pool.Slices {
			s.Slices = append(s.Slices, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s", i, name)},
				Spec:       devices.SliceSpec(name, poolName, pool, slice),
			})
		}
	}
	s.nodes[name] = allocatortest.NewNode(name, v1alpha1.DriverName, resources, s.Classes)
}

// hold has a claim allocated of a node, if it fits there.
func (s *stage) hold(t testing.TB, node string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	t.Helper()
	results, err := s.nodes[node].Allocate(t.Context(), resourceapi.DeviceClaim{Requests: requests})
	if err != nil || results == nil {
		return nil
	}
	held := claim(requests...)
	held.Name = fmt.Sprintf("held-%d", len(s.Claims))
	held.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField,
				Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}
	s.Claims = append(s.Claims, held)
	return held
}

// holdEach allocates a claim for each request.
func (s *stage) holdEach(t testing.TB, node string, requests []resourceapi.DeviceRequest) {
	t.Helper()
	for _, r := range requests {
		if s.hold(t, node, r) == nil {
			t.Fatal("what is to be held does not fit")
		}
	}
}

// room returns what an engine finds for a pod that may use any node.
func (s *stage) room(t testing.TB, e *scheduling.Engine, claims ...*resourceapi.ResourceClaim) scheduling.Room {
	t.Helper()
	room, err := e.FindRoom(t.Context(), s.Snapshot, podOn(""), claims)
	expect.NoError(t, err)
	return room
}

// fits says of each node whether the scheduler's allocator would serve a claim there.
func (s *stage) fits(t testing.TB, node string, wanted *resourceapi.ResourceClaim) (bool, error) {
	t.Helper()
	n := s.nodes[node]
	results, err := n.Allocate(t.Context(), wanted.Spec.Devices)
	if results != nil {
		n.Release(results)
	}
	return results != nil, err
}

// dice makes situations.
type dice struct{ *rand.Rand }

func one[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

var machines = []string{"a10x4", "v100x4", "t4x1", "a100x8", "dgx1"}

// resources is what a node might publish.
func (d dice) resources(known map[string]*gpu.Machine, name string) resourceslice.DriverResources {
	m := known[one(d, machines...)]
	o := devices.Options{Pool: v1alpha1.PoolName(name), Slots: int64(1 + d.IntN(4)), Isolation: "none",
		GPUTaints: map[string][]resourceapi.DeviceTaint{}, Room: map[string]gpu.Amount{},
		Limits: map[string]gpu.Amount{}}
	for _, g := range m.GPUs {
		switch d.IntN(8) {
		case 0:
			o.GPUTaints[g.UUID] = []resourceapi.DeviceTaint{{Key: one(d, v1alpha1.TaintUnhealthy, v1alpha1.TaintSwitching),
				Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		case 1:
			o.Room[g.UUID] = gpu.Amount{Units: int64(d.IntN(8)), Cores: int64(5 * d.IntN(20)), Shares: o.Slots}
		case 2:
			o.Limits[g.UUID] = gpu.Amount{Units: int64(1 + d.IntN(8)), Shares: 1}
		}
	}
	modes := []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology}
	if d.IntN(5) == 0 {
		var perMode []devices.Options
		for _, m := range modes[:5] {
			o.Mode = m
			perMode = append(perMode, o)
		}
		return devices.BuildDynamic(m, perMode)
	}
	o.Mode = one(d, modes...)
	return devices.Build(m, o)
}

// request is what a claim might ask for.
func (d dice) request(name string) resourceapi.DeviceRequest {
	class := one(d, shareClass, shareClass, wholeClass, topologyClass, "cgpu.gpu.aliyun.com", "core-mem.gpu.aliyun.com",
		"mps.gpu.aliyun.com", "share.nvidia-a10.gpu.aliyun.com", "gpu.aliyun.com")
	options := []option{}
	shared := !slices.Contains([]string{wholeClass, topologyClass, "gpu.aliyun.com"}, class)
	if shared && d.IntN(5) > 0 || strings.HasPrefix(class, "core-mem") {
		options = append(options, amount(v1alpha1.CapMemory, one(d, "1Gi", "3Gi", "8Gi", "1500Mi", "16Gi", "40Gi", "100Gi")))
	}
	if strings.HasPrefix(class, "core-mem") {
		options = append(options, amount(v1alpha1.CapCores, one(d, "5", "33", "60", "100")))
	}
	if d.IntN(4) == 0 {
		options = append(options, count(int64(1+d.IntN(5))))
	}
	switch d.IntN(8) {
	case 0:
		options = append(options, attribute(`model == "`+one(d, "NVIDIA-A10", "Tesla-V100-SXM2-16GB")+`"`))
	case 1:
		options = append(options, attribute("?gpuCount.orValue(1) == "+one(d, "1", "2", "4")))
	case 2:
		options = append(options, tolerating(v1alpha1.TaintUnhealthy))
	case 3:
		options = append(options, everyOne)
	case 4:
		options = append(options, asAdmin)
	}
	return request(name, class, options...)
}

func (d dice) claim() *resourceapi.ResourceClaim {
	switch d.IntN(6) {
	case 0:
		return claim(firstOf("r", d.request("a"), d.request("b")))
	case 1:
		return sameAttribute(claim(d.request("r"), d.request("s")), "gpu.aliyun.com/uuid")
	case 2:
		return claim(d.request("r"), d.request("s"))
	default:
		return claim(d.request("r"))
	}
}

// A pod is said to find no room exactly if the scheduler's allocator finds none on any node
// that the pod can be on, and the words for a node agree with the allocator, too.
func TestRoomIsWhereTheAllocatorFindsIt(t *testing.T) {
	known, classes := map[string]*gpu.Machine{}, allClasses(t)
	for _, name := range machines {
		known[name] = machine(t, name)
	}
	var room, none, alone int
	situations := uint64(300)
	if testing.Short() {
		situations = 30
	}
	for seed := range situations {
		d := dice{rand.New(rand.NewPCG(seed, 14))}
		s := newStage(classes)
		for n := range 1 + d.IntN(4) {
			name := fmt.Sprintf("n%d", n)
			var taints []corev1.Taint
			if d.IntN(6) == 0 {
				taints = []corev1.Taint{{Key: "dedicated", Effect: one(d, corev1.TaintEffectNoSchedule,
					corev1.TaintEffectPreferNoSchedule)}}
			}
			s.add(name, d.resources(known, name), taints...)
			for range d.IntN(12) {
				s.hold(t, name, d.request("r"))
			}
		}
		pod, claims := podOn(""), []*resourceapi.ResourceClaim{d.claim()}
		may := func(node string) bool { return true }
		switch d.IntN(5) {
		case 0:
			pod = podOn("n0")
			may = func(node string) bool { return node == "n0" }
		case 1:
			if len(s.Claims) > 0 {
				held := s.Claims[0]
				on := strings.TrimSuffix(held.Status.Allocation.Devices.Results[0].Pool, "/gpu")
				claims = append(claims, held)
				may = func(node string) bool { return node == on }
			}
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			got, err := engine.FindRoom(t.Context(), s.Snapshot, pod, claims)
			expect.NoError(t, err)
			want, refused := false, false
			for i, n := range got.Nodes {
				fits, err := s.fits(t, n.Name, claims[0])
				if err != nil {
					refused = refused || n.Closed.By == scheduling.Open
					continue
				}
				closed := !may(n.Name) || slices.ContainsFunc(s.Nodes[i].Spec.Taints, func(taint corev1.Taint) bool {
					return taint.Effect == corev1.TaintEffectNoSchedule
				})
				want = want || fits && !closed
				if n.Fits != fits || (n.Closed.By != scheduling.Open) != closed {
					t.Errorf("%+v, but the allocator finds devices: %v, closed: %v", n, fits, closed)
				}
				if fits && n.Closed.By != scheduling.ByPod {
					if lacks := s.lacks(t, i, pod, claims); len(lacks) > 0 {
						t.Errorf("node %s has room, and would be said to lack %+v", n.Name, lacks)
					}
				}
				says := len(n.Lacks) == 1 && n.Lacks[0].Step == scheduling.Suits
				together := len(claims[0].Spec.Devices.Requests) > 1 || overlap(claims[0])
				if !fits && (len(n.Lacks) == 0 || says && !together) {
					t.Errorf("node %s has no room, and is said to lack %+v", n.Name, n.Lacks)
				}
				if !together {
					alone++
				}
			}
			// With an error the scheduler gives up, whatever it found on other nodes.
			want = want && !refused
			if got.Fits() != want || (got.Refused != nil) != refused {
				t.Errorf("it says that there is room: %v, refused: %v; the allocator finds some: %v, and gives up: %v",
					got.Fits(), got.Refused, want, refused)
			}
			s.agrees(t, pod, claims, got)
			if want {
				room++
			} else {
				none++
			}
		})
	}
	if (room < 50 || none < 50 || alone < 200) && !testing.Short() {
		t.Errorf("%d situations with room, %d without, %d nodes with one request: too few to show anything", room, none,
			alone)
	}
}

// overlap reports whether a claim asks for several devices of a class whose devices can be of the same GPUs, so that
// each may stand in another's way: linked sets, and the modes of a node in mode dynamic.
func overlap(c *resourceapi.ResourceClaim) bool {
	several := func(class string, m resourceapi.DeviceAllocationMode, n int64) bool {
		return (n > 1 || m == resourceapi.DeviceAllocationModeAll) && (class == topologyClass || class == "gpu.aliyun.com")
	}
	return slices.ContainsFunc(c.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
		return r.Exactly != nil && several(r.Exactly.DeviceClassName, r.Exactly.AllocationMode, r.Exactly.Count) ||
			slices.ContainsFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool {
				return several(s.DeviceClassName, s.AllocationMode, s.Count)
			})
	})
}

// What a node lacks is said of the GPU that is nearest.
func TestWhatNodesLack(t *testing.T) {
	classes := allClasses(t)
	share, whole := request("r", shareClass, amount(v1alpha1.CapMemory, "8Gi")), request("r", wholeClass)
	all := func(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
		r = *r.DeepCopy()
		everyOne(r.Exactly)
		return r
	}
	sick := func(o *devices.Options) {
		o.Taints = []resourceapi.DeviceTaint{{Key: v1alpha1.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoExecute}}
	}
	for name, test := range map[string]struct {
		machine string
		mode    mode.Mode
		option  func(*devices.Options)
		held    []resourceapi.DeviceRequest
		asked   resourceapi.DeviceRequest
		want    string
		missing string
	}{
		"memory": {"a10x4", mode.Share, nil, slices.Repeat([]resourceapi.DeviceRequest{
			request("r", shareClass, amount(v1alpha1.CapMemory, "17Gi"))}, 4), share,
			"memory: asked 8Gi, largest free 5Gi on gpu-0", "3Gi"},
		"slots": {"t4x1", mode.Share, func(o *devices.Options) { o.Slots = 1 }, []resourceapi.DeviceRequest{
			request("r", shareClass)}, share, "slots: asked 1, largest free 0 on gpu-0", "1"},
		"compute": {"t4x1", mode.CoreMem, nil, []resourceapi.DeviceRequest{
			request("r", "core-mem.gpu.aliyun.com", amount(v1alpha1.CapMemory, "1Gi"), amount(v1alpha1.CapCores, "80"))},
			request("r", "core-mem.gpu.aliyun.com", amount(v1alpha1.CapMemory, "1Gi"), amount(v1alpha1.CapCores, "33")),
			"cores: asked 35, largest free 20 on gpu-0", "15"},
		"a whole GPU": {"t4x1", mode.Exclusive, nil, []resourceapi.DeviceRequest{whole}, whole, "taken: gpu-0", "0"},
		"several": {"a10x4", mode.Exclusive, nil, []resourceapi.DeviceRequest{request("r", wholeClass, count(2))},
			request("r", wholeClass, count(3)), "asked 3 GPUs, 2 free; taken: gpu-0, gpu-1", "0"},
		"several, of which fewer match": {"a10x4", mode.Share, nil, []resourceapi.DeviceRequest{
			request("r", shareClass, amount(v1alpha1.CapMemory, "17Gi"), attribute("index == 0")),
			request("r", shareClass, amount(v1alpha1.CapMemory, "17Gi"), attribute("index == 1"))},
			request("r", shareClass, amount(v1alpha1.CapMemory, "8Gi"), count(3), attribute("index < 2")),
			"asked 3 GPUs, 0 free; memory: asked 8Gi, largest free 5Gi on gpu-0", "0"},
		"several, of which fewer match and are free": {"a10x4", mode.Share, nil, nil,
			request("r", shareClass, count(3), attribute("index < 2")), "asked 3 GPUs, 2 free", "0"},
		"health": {"a10x4", mode.Share, sick, nil, share, "unhealthy: all 4 GPUs", "0"},
		"size": {"t4x1", mode.Share, nil, nil, request("r", shareClass, amount(v1alpha1.CapMemory, "40Gi")),
			"memory: asked 40Gi, the largest GPU has 15Gi (gpu-0)", "0"},
		"mode": {"t4x1", mode.Exclusive, nil, nil, share, "mode: asked class share.gpu.aliyun.com, offers exclusive", "0"},
		"model": {"t4x1", mode.Share, nil, nil, request("r", "share.nvidia-a10.gpu.aliyun.com"),
			"model: asked NVIDIA-A10, has Tesla-T4", "0"},
		"a selector": {"t4x1", mode.Share, nil, nil, request("r", shareClass, attribute(`model == "NVIDIA-A10"`)),
			`no GPU matches device.attributes["gpu.aliyun.com"].model == "NVIDIA-A10", there is model Tesla-T4`, "0"},
		"a linked set": {"dgx1", mode.Topology, nil, []resourceapi.DeviceRequest{
			request("r", topologyClass, attribute("?gpuCount.orValue(1) == 8"))},
			request("r", topologyClass, attribute("?gpuCount.orValue(1) == 8")), "taken: gpus-0-1-2-3-4-5-6-7", "0"},
		"single GPUs beside linked sets": {"dgx1", mode.Topology, nil, []resourceapi.DeviceRequest{
			request("r", topologyClass, attribute("?gpuCount.orValue(1) == 1"))},
			request("r", topologyClass, count(8)), "asked 8 GPUs, 7 free; taken: gpu-0", "0"},
		"health of linked sets": {"dgx1", mode.Topology, sick, nil, request("r", topologyClass),
			"unhealthy: all 8 GPUs", "0"},
		"all, of which one is full": {"a10x4", mode.Share, nil, []resourceapi.DeviceRequest{
			request("r", shareClass, amount(v1alpha1.CapMemory, "17Gi"))}, all(share),
			"asked 4 GPUs, 3 free; memory: asked 8Gi, largest free 5Gi on gpu-0", "3Gi"},
		// The scheduler leaves out those that offer too little.
		"all, of which one offers less": {"a10x4", mode.Share, func(o *devices.Options) {
			o.Room = map[string]gpu.Amount{machine(t, "a10x4").GPUs[3].UUID: {Units: 2, Shares: 20}}
		}, []resourceapi.DeviceRequest{request("r", shareClass, amount(v1alpha1.CapMemory, "17Gi"))}, all(share),
			"asked 3 GPUs, 2 free; memory: asked 8Gi, largest free 5Gi on gpu-0", "3Gi"},
		"all, of which one is sick": {"a10x4", mode.Share, func(o *devices.Options) {
			o.GPUTaints = map[string][]resourceapi.DeviceTaint{machine(t, "a10x4").GPUs[3].UUID: {
				{Key: v1alpha1.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoExecute}}}
		}, []resourceapi.DeviceRequest{request("r", shareClass, amount(v1alpha1.CapMemory, "17Gi"))}, all(share),
			"asked 4 GPUs, 2 free; memory: asked 8Gi, largest free 5Gi on gpu-0; unhealthy: gpu-3", "0"},
		// An administrator's access is beside those that hold a device, but not beside what excludes it.
		"access to a linked set, of which one GPU is taken": {"dgx1", mode.Topology, nil, []resourceapi.DeviceRequest{
			request("r", topologyClass, attribute("?gpuCount.orValue(1) == 1"))},
			request("r", topologyClass, attribute("?gpuCount.orValue(1) == 8"), asAdmin), "taken: gpus-0-1-2-3-4-5-6-7", "0"},
		"held back": {"t4x1", mode.Share, func(o *devices.Options) {
			o.Limits = map[string]gpu.Amount{machine(t, "t4x1").GPUs[0].UUID: {Units: 4, Shares: 1}}
		}, nil, share, "held back for a moment, as shares are spread: gpu-0", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(classes)
			o := devices.Options{Pool: v1alpha1.PoolName("n"), Mode: test.mode, Slots: 20, Isolation: "none"}
			if test.option != nil {
				test.option(&o)
			}
			s.add("n", devices.Build(machine(t, test.machine), o))
			s.holdEach(t, "n", test.held)
			room := s.room(t, engine, claim(test.asked))
			lacks := room.Nodes[0].Lacks
			if room.Fits() || len(lacks) != 1 || explain.Lack(lacks[0]) != test.want {
				t.Fatalf("got %+v, want %s", room, test.want)
			}
			expect.Equal(t, test.missing, explain.Written(lacks[0].Capacity, lacks[0].Missing), "missing is")
		})
	}
}
