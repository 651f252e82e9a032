package explain_test

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/cards"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	devslices "github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

const never = ". the pod can never be scheduled on this cluster as it is"

// site is what the nodes of a cluster publish.
type site struct {
	t      testing.TB
	slices []*cards.Slice
	labels map[string]map[string]string
}

func newSite(t testing.TB) *site { return &site{t: t, labels: map[string]map[string]string{}} }

func machine(t testing.TB, name string) *gpu.Machine {
	t.Helper()
	m, err := topologytest.Machine(t.Context(), filepath.Join("..", "..", "..", "demo", "machines", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// node adds a node with a machine of demo/machines in a mode.
func (s *site) node(name, machineName string, m mode.Mode, options ...func(*devslices.Options)) *site {
	s.t.Helper()
	o := devslices.Options{Pool: devslices.PoolName(name), Mode: m, Slots: 20, Isolation: "none"}
	for _, option := range options {
		option(&o)
	}
	return s.publish(name, devslices.Build(machine(s.t, machineName), o))
}

func (s *site) dynamicNode(name, machineName string) *site {
	s.t.Helper()
	var personalities []devslices.Options
	for _, m := range []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS} {
		personalities = append(personalities, devslices.Options{Pool: devslices.PoolName(name), Mode: m, Slots: 20, Isolation: "none"})
	}
	return s.publish(name, devslices.BuildDynamic(machine(s.t, machineName), personalities))
}

func (s *site) publish(node string, resources resourceslice.DriverResources) *site {
	s.labels[node] = map[string]string{corev1.LabelHostname: node}
	pool := resources.Pools[devslices.PoolName(node)]
	for i, slice := range pool.Slices {
		for j := range slice.Devices {
			// UUIDs are unique in a cluster, which those of machine files are not.
			if uuid := slice.Devices[j].Attributes[devslices.AttrUUID].StringValue; uuid != nil {
				slice.Devices[j].Attributes[devslices.AttrUUID] = resourceapi.DeviceAttribute{StringValue: ptr.To(node + *uuid)}
			}
		}
		s.slices = append(s.slices, cards.Read(&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-%s", i, node)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: devslices.DriverName, NodeName: ptr.To(node), Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: devslices.PoolName(node), Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
			},
		}))
	}
	return s
}

func taint(key string) func(*devslices.Options) {
	return func(o *devslices.Options) {
		o.Taints = []resourceapi.DeviceTaint{{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
}

func (s *site) published() explain.Published {
	s.t.Helper()
	classes, err := deviceclasses.Modes()
	if err != nil {
		s.t.Fatal(err)
	}
	models, err := deviceclasses.Model("NVIDIA-A100-SXM4-80GB", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	other := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic.example.com"}}
	return explain.Published{Slices: s.slices, Labels: s.labels, Classes: append(append(classes, models...), other)}
}

func (s *site) explain(pod *corev1.Pod, claims ...*resourceapi.ResourceClaim) explain.Explanation {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	cluster, err := explain.New().Look(s.published())
	if err != nil {
		s.t.Fatal(err)
	}
	e, err := cluster.Explain(ctx, pod, claims)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

type option func(*resourceapi.ExactDeviceRequest)

func request(name, class string, options ...option) resourceapi.DeviceRequest {
	e := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	for _, option := range options {
		option(e)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: e}
}

func count(n int64) option {
	return func(e *resourceapi.ExactDeviceRequest) { e.Count = n }
}

func amount(name resourceapi.QualifiedName, quantity string) option {
	return func(e *resourceapi.ExactDeviceRequest) {
		if e.Capacity == nil {
			e.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		}
		e.Capacity.Requests[name] = resource.MustParse(quantity)
	}
}

func matching(expression string) option {
	return func(e *resourceapi.ExactDeviceRequest) {
		e.Selectors = append(e.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
}

func attribute(condition string) option {
	return matching(`device.attributes["gpu.aliyun.com"].` + condition)
}

func tolerating(key string) option {
	return func(e *resourceapi.ExactDeviceRequest) {
		e.Tolerations = []resourceapi.DeviceToleration{{Key: key, Operator: resourceapi.DeviceTolerationOpExists}}
	}
}

// firstOf is a request with alternatives.
func firstOf(name string, requests ...resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	out := resourceapi.DeviceRequest{Name: name}
	for _, r := range requests {
		e := r.Exactly
		out.FirstAvailable = append(out.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: r.Name, DeviceClassName: e.DeviceClassName, AllocationMode: e.AllocationMode, Count: e.Count,
			Selectors: e.Selectors, Capacity: e.Capacity, Tolerations: e.Tolerations,
		})
	}
	return out
}

func claim(requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// sameAttribute lets all devices of a claim have one value of an attribute.
func sameAttribute(c *resourceapi.ResourceClaim, name resourceapi.FullyQualifiedName) *resourceapi.ResourceClaim {
	c.Spec.Devices.Constraints = append(c.Spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: &name})
	return c
}

func podOn(node string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	return pod
}

const (
	topologyClass = "topology.gpu.aliyun.com"
	shareClass    = "share.gpu.aliyun.com"
	wholeClass    = "exclusive.gpu.aliyun.com"
)

func TestExplanations(t *testing.T) {
	// A DGX-1, eight whole A100, four shared A10.
	three := func(t *testing.T) *site {
		return newSite(t).node("topo", "dgx1", mode.Topology).node("whole", "a100x8", mode.Exclusive).node("share", "a10x4", mode.Share)
	}
	for name, test := range map[string]struct {
		site     func(t *testing.T) *site
		node     string
		requests []resourceapi.DeviceRequest
		want     string
		busy     bool
	}{
		"more cards than a node has": {
			requests: []resourceapi.DeviceRequest{request("cards", topologyClass, attribute("gpuCount == 1"), count(16))},
			want:     "request cards: 16 cards of class topology.gpu.aliyun.com asked for; the node with the most that match has 8 (node topo)" + never,
		},
		"more cards than a node has, both ways": {
			requests: []resourceapi.DeviceRequest{firstOf("cards",
				request("linked", topologyClass, attribute("gpuCount == 16")), request("any", topologyClass, attribute("gpuCount == 1"), count(16)))},
			want: `request cards/linked: no device matches the selector device.attributes["gpu.aliyun.com"].gpuCount == 16;` +
				` of class topology.gpu.aliyun.com there are 53 devices, with gpuCount 1, 2, 4, 8.` +
				` request cards/any: 16 cards of class topology.gpu.aliyun.com asked for; the node with the most that match has 8 (node topo)` + never,
		},
		"a set that there is none of": {
			requests: []resourceapi.DeviceRequest{request("linked", topologyClass, attribute("gpuCount == 3"))},
			want: `request linked: no device matches the selector device.attributes["gpu.aliyun.com"].gpuCount == 3;` +
				` of class topology.gpu.aliyun.com there are 53 devices, with gpuCount 1, 2, 4, 8` + never,
		},
		"a set that there is none of, or single cards": {
			requests: []resourceapi.DeviceRequest{firstOf("cards",
				request("linked", topologyClass, attribute("gpuCount == 3")), request("any", topologyClass, attribute("gpuCount == 1"), count(3)))},
			want: `request cards/linked: no device matches the selector device.attributes["gpu.aliyun.com"].gpuCount == 3;` +
				` of class topology.gpu.aliyun.com there are 53 devices, with gpuCount 1, 2, 4, 8.` +
				` request cards/any: the cards that match are all taken or too full: 8 cards on node topo`,
			busy: true,
		},
		"sets that overlap": {
			requests: []resourceapi.DeviceRequest{request("linked", topologyClass, attribute("gpuCount == 4"), count(3))},
			want:     "no node has all that is asked for at once" + never,
		},
		"more memory than a card has": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "90Gi"))},
			want:     "request gpu: 90Gi of memory asked for; the largest card that matches has 22Gi (node share, NVIDIA-A10)" + never,
		},
		"more memory than a whole card has": {
			requests: []resourceapi.DeviceRequest{request("gpu", wholeClass, amount("memory", "90Gi"))},
			want:     "request gpu: 90Gi of memory asked for; the largest card that matches has 80Gi (node whole, NVIDIA-A100-SXM4-80GB)" + never,
		},
		"more shares than a card takes": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("slots", "21"))},
			want:     "request gpu: 21 of slots asked for; the largest card that matches has 20 (node share, NVIDIA-A10)" + never,
		},
		"compute where none is granted": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("cores", "25"))},
			want:     "request gpu: 25 of cores asked for; the cards that match give none (mode share)" + never,
		},
		"a capacity that cards do not have": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memroy", "2Gi"))},
			want:     "request gpu: 2Gi of memroy asked for; the cards that match have no such capacity" + never,
		},
		"a mode that no node is in": {
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com")},
			want:     "request gpu: no node offers cards of class mps.gpu.aliyun.com; there are cards in the modes exclusive, share, topology" + never,
		},
		"a class that is not there": {
			requests: []resourceapi.DeviceRequest{request("gpu", "share.tesla-t5.gpu.aliyun.com")},
			want:     "request gpu: DeviceClass share.tesla-t5.gpu.aliyun.com does not exist; there are cards in the modes exclusive, share, topology",
		},
		"no cards at all": {
			site:     newTestSite,
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass)},
			want:     "request gpu: no node offers cards of class share.gpu.aliyun.com; no node offers any cards" + never,
		},
		"a model that no card is": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, attribute(`model == "NVIDIA-A11"`))},
			want: `request gpu: no card matches the selector device.attributes["gpu.aliyun.com"].model == "NVIDIA-A11";` +
				` of class share.gpu.aliyun.com there are 4 cards, with model NVIDIA-A10` + never,
		},
		"two selectors, the second of which is too much": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, attribute(`model == "NVIDIA-A10"`), attribute("index >= 4"))},
			want: `request gpu: no card matches the selectors of the request, of which device.attributes["gpu.aliyun.com"].index >= 4 leaves none;` +
				` of class share.gpu.aliyun.com there are 4 cards, with index 0, 1, 2, 3` + never,
		},
		"an attribute that cards do not have": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, attribute("memoryMB > 1000"))},
			want: `request gpu: the selector device.attributes["gpu.aliyun.com"].memoryMB > 1000 cannot be evaluated for device gpu-0-share of node share` +
				` (no such key: memoryMB), and that keeps the pod from every node`,
		},
		"an attribute that linked sets do not have": {
			requests: []resourceapi.DeviceRequest{request("gpu", topologyClass, attribute("index == 3"))},
			want: `request gpu: the selector device.attributes["gpu.aliyun.com"].index == 3 cannot be evaluated for device gpus-0-1 of node topo` +
				` (no such key: index), and that keeps the pod from every node`,
		},
		"a selector that fails on nodes out of reach": {
			node:     "whole",
			requests: []resourceapi.DeviceRequest{request("gpu", topologyClass, attribute("index == 3"))},
			want:     "request gpu: the cards that match are on nodes that the pod's nodeSelector, its affinity or its other claims exclude: topo",
		},
		"cards on other nodes alone": {
			node:     "topo",
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "3Gi"))},
			want:     "request gpu: the cards that match are on nodes that the pod's nodeSelector, its affinity or its other claims exclude: share",
		},
		"a node that waits to change its mode": {
			site: func(t *testing.T) *site {
				return newSite(t).node("share", "a10x4", mode.Share, taint(devslices.TaintSwitching))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass)},
			want:     "request gpu: the cards that match take no new claims at the moment: node share (waits to change its mode); the Events of the node say more",
		},
		"a node without isolation": {
			site: func(t *testing.T) *site {
				return newSite(t).node("n", "v100x4", mode.MPS, taint(devslices.TaintNotIsolated)).node("share", "a10x4", mode.Share)
			},
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com")},
			want:     "request gpu: the cards that match take no new claims at the moment: node n (isolation unavailable); the Events of the node say more",
		},
		"a taint that is tolerated": {
			site: func(t *testing.T) *site {
				return newSite(t).node("n", "v100x4", mode.MPS, taint(devslices.TaintNotIsolated))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com", tolerating(devslices.TaintNotIsolated))},
			want:     "request gpu: the cards that match are all taken or too full: 4 cards on node n",
			busy:     true,
		},
		"a mode to come": {
			site: func(t *testing.T) *site {
				return newSite(t).node("share", "a10x4", mode.Share, taint(devslices.TaintSwitching))
			},
			requests: []resourceapi.DeviceRequest{request("gpu", "mps.gpu.aliyun.com")},
			want:     "request gpu: no node offers cards of class mps.gpu.aliyun.com; there are cards in the mode share",
		},
		"cards that are away": {
			site: func(t *testing.T) *site {
				s := newSite(t).node("share", "a10x4", mode.Share)
				s.labels["gone"] = map[string]string{"aliyun.accelerator/nvidia_name": "Tesla-T4"}
				return s
			},
			requests: []resourceapi.DeviceRequest{request("gpu", wholeClass)},
			want:     "request gpu: no node offers cards of class exclusive.gpu.aliyun.com; there are cards in the mode share",
		},
		"all in use": {
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass, amount("memory", "22Gi"))},
			want:     "request gpu: the cards that match are all taken or too full: 4 cards on node share",
			busy:     true,
		},
		"sets in use": {
			requests: []resourceapi.DeviceRequest{request("linked", topologyClass, attribute("gpuCount == 4"))},
			want:     "request linked: the linked sets that match are all taken or too full: 28 linked sets on node topo",
			busy:     true,
		},
		"in use on several nodes": {
			site: func(t *testing.T) *site {
				return newSite(t).node("a", "a10x4", mode.Share).node("b", "a10x4", mode.Share).node("c", "v100x4", mode.Share)
			},
			requests: []resourceapi.DeviceRequest{request("gpu", shareClass)},
			want:     "request gpu: the cards that match are all taken or too full: 12 cards on 3 nodes",
			busy:     true,
		},
		"one of two requests": {
			requests: []resourceapi.DeviceRequest{request("a", shareClass), request("b", shareClass, amount("memory", "23Gi"))},
			want:     "request b: 23Gi of memory asked for; the largest card that matches has 22Gi (node share, NVIDIA-A10)" + never,
		},
		"requests that no one node can serve": {
			requests: []resourceapi.DeviceRequest{request("a", shareClass), request("b", wholeClass)},
			want:     "no node has all that is asked for at once" + never,
		},
		"requests for a card and one of somebody else": {
			requests: []resourceapi.DeviceRequest{request("a", shareClass), request("nic", "nic.example.com"), request("b", wholeClass)},
			want: "request a: the cards that match are all taken or too full: 4 cards on node share." +
				" request b: the cards that match are all taken or too full: 8 cards on node whole",
			busy: true,
		},
		"nothing of ours": {
			requests: []resourceapi.DeviceRequest{request("nic", "nic.example.com")},
		},
		"each card in several modes": {
			site:     func(t *testing.T) *site { return newSite(t).dynamicNode("dynamic", "a100x8") },
			requests: []resourceapi.DeviceRequest{request("cards", "nvidia-a100-sxm4-80gb.gpu.aliyun.com", count(9))},
			want:     "request cards: 9 cards of class nvidia-a100-sxm4-80gb.gpu.aliyun.com asked for; the node with the most that match has 8 (node dynamic)" + never,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.site == nil {
				test.site = three
			}
			got := test.site(t).explain(podOn(test.node), claim(test.requests...))
			if got.Message != test.want {
				t.Errorf("got  %q\nwant %q", got.Message, test.want)
			}
			if got.Busy != test.busy {
				t.Errorf("busy: %v, want %v", got.Busy, test.busy)
			}
		})
	}
}

func newTestSite(t *testing.T) *site { return newSite(t) }

func TestClaimsOfAPodAreSeenTogether(t *testing.T) {
	site := newSite(t).node("mixed", "mixed", mode.Exclusive).node("topo", "dgx1", mode.Topology).node("share", "a10x4", mode.Share)
	named := func(name string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		c.Name = name
		return c
	}
	allocatedOn := func(node string) *resourceapi.ResourceClaim {
		c := named("there", claim(request("x", shareClass, amount("memory", "99Gi"))))
		c.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
		return c
	}
	for name, test := range map[string]struct {
		claims []*resourceapi.ResourceClaim
		want   string
	}{
		"each of another node": {
			[]*resourceapi.ResourceClaim{named("a", claim(request("r", shareClass))), named("b", claim(request("r", topologyClass)))},
			"no node has all that is asked for at once" + never,
		},
		"one too large": {
			[]*resourceapi.ResourceClaim{named("a", claim(request("r", shareClass))), named("b", claim(request("r", shareClass, amount("memory", "99Gi"))))},
			"claim b, request r: 99Gi of memory asked for; the largest card that matches has 22Gi (node share, NVIDIA-A10)" + never,
		},
		"four cards of one model, of two and two": {
			[]*resourceapi.ResourceClaim{sameAttribute(claim(request("r", wholeClass, count(4))), "gpu.aliyun.com/model")},
			"no node has all that is asked for at once with matchAttribute gpu.aliyun.com/model" + never,
		},
		"two cards of one model": {
			[]*resourceapi.ResourceClaim{sameAttribute(claim(request("r", wholeClass, count(2))), "gpu.aliyun.com/model")},
			"request r: the cards that match are all taken or too full: 4 cards on node mixed",
		},
		"a claim that has its cards on another node": {
			[]*resourceapi.ResourceClaim{allocatedOn("topo"), named("b", claim(request("r", shareClass)))},
			"claim b, request r: the cards that match are on nodes that the pod's nodeSelector, its affinity or its other claims exclude: share",
		},
		"claims that have their cards": {[]*resourceapi.ResourceClaim{allocatedOn("topo")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := site.explain(podOn(""), test.claims...).Message; got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// Cards of nodes that are alike are looked at once, but for a selector by UUID.
func TestCardsAreToldApartByUUID(t *testing.T) {
	site := newSite(t).node("a", "a10x4", mode.Share).node("b", "a10x4", mode.Share)
	uuid := site.slices[1].UUIDs[2]
	for name, test := range map[string]struct{ selector, want string }{
		"one card":  {fmt.Sprintf(`device.attributes["gpu.aliyun.com"].uuid == %q`, uuid), "the cards that match are all taken or too full: 1 card on node b"},
		"all cards": {`device.attributes["gpu.aliyun.com"].exists(name, name == "uuid")`, "the cards that match are all taken or too full: 8 cards on 2 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			got := site.explain(podOn(""), claim(request("gpu", shareClass, matching(test.selector)))).Message
			if got != "request gpu: "+test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// What was found out about cards must not outlive a change of them.
func TestNextLookSeesWhatChanged(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	explainer := explain.New()
	for step, test := range []struct {
		site *site
		want string
	}{
		{newSite(t), "no node offers cards of class share.gpu.aliyun.com; no node offers any cards" + never},
		{newSite(t).node("n", "a10x4", mode.Share), "the cards that match are all taken or too full: 4 cards on node n"},
		{newSite(t).node("n", "a10x4", mode.Exclusive), "no node offers cards of class share.gpu.aliyun.com; there are cards in the mode exclusive" + never},
		{newSite(t).node("n", "t4x1", mode.Share).node("o", "a10x4", mode.Share), "the cards that match are all taken or too full: 5 cards on 2 nodes"},
	} {
		cluster, err := explainer.Look(test.site.published())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := cluster.Explain(ctx, podOn(""), []*resourceapi.ResourceClaim{claim(request("gpu", shareClass))})
			if err != nil || got.Message != "request gpu: "+test.want {
				t.Errorf("step %d: got %q, %v, want %q", step, got.Message, err, test.want)
			}
		}
	}
}

// A pool of which a slice is missing offers nothing, and may be about to.
func TestPoolInPartSettlesNothing(t *testing.T) {
	site := newSite(t).node("topo", "dgx1", mode.Topology)
	site.slices = site.slices[:1]
	want := "request gpu: no node offers cards of class topology.gpu.aliyun.com; no node offers any cards"
	if got := site.explain(podOn(""), claim(request("gpu", topologyClass))).Message; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// BenchmarkThousandNodes measures 500 pods, each with a claim of its own, that wait
// on 1000 nodes of 8 cards: what a change of one node costs, and then each pod.
func BenchmarkThousandNodes(b *testing.B) {
	_, ctx := ktesting.NewTestContext(b)
	built := newSite(b)
	m := machine(b, "a100x8")
	for i := range 1000 {
		name := fmt.Sprintf("node-%d", i)
		built.publish(name, devslices.Build(m, devslices.Options{Pool: devslices.PoolName(name), Mode: mode.Share, Slots: 20}))
	}
	published := built.published()
	explainer := explain.New()
	look := func() *explain.Cluster {
		cluster, err := explainer.Look(published)
		if err != nil {
			b.Fatal(err)
		}
		return cluster
	}
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			look()
		}
	})
	ask := func(b *testing.B, cluster *explain.Cluster, i int) {
		b.Helper()
		c := claim(request("gpu", shareClass, attribute(fmt.Sprintf("index != %d", i%8)), amount("memory", fmt.Sprintf("%dGi", 1+i%500))))
		if _, err := cluster.Explain(ctx, podOn(""), []*resourceapi.ResourceClaim{c}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("pod", func(b *testing.B) {
		cluster := look()
		for i := 0; b.Loop(); i++ {
			if i%500 == 0 {
				b.StopTimer()
				cluster = look()
				b.StartTimer()
			}
			ask(b, cluster, i)
		}
	})
	b.Run("pod by uuid", func(b *testing.B) {
		cluster := look()
		for i := 0; b.Loop(); i++ {
			c := claim(request("gpu", shareClass, attribute(fmt.Sprintf(`uuid == "GPU-%d"`, i))))
			if _, err := cluster.Explain(ctx, podOn(""), []*resourceapi.ResourceClaim{c}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
