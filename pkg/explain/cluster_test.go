// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// A label that nobody took off a node without GPUs leaves no pod in hope for ever.
func TestNodeThatStaysAwayIsNotWaitedFor(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	s := newSite(t).node("share", "a10x4", mode.Share)
	explainer, start := explain.New(engine, unlimited), time.Now()
	never := func(after time.Duration) (bool, time.Time) {
		t.Helper()
		p := s.published()
		p.Now = start.Add(after)
		cluster, err := explainer.Look(p)
		expect.NoError(t, err)
		e, err := cluster.Explain(ctx, podOn(""), []*resourceapi.ResourceClaim{claim(request("gpu", wholeClass))})
		expect.NoError(t, err)
		return e.Never, cluster.Until()
	}
	s.labels["gone"] = map[string]string{"aliyun.accelerator/nvidia_name": "Tesla-T4"}
	if is, until := never(0); is || !until.Equal(start.Add(10*time.Minute)) {
		t.Errorf("at first: never is %t, until %s after the start", is, until.Sub(start))
	}
	if is, _ := never(9 * time.Minute); is {
		t.Error("it is given up after 9 minutes")
	}
	if is, until := never(10 * time.Minute); !is || !until.IsZero() {
		t.Errorf("after 10 minutes: never is %t, until %s", is, until)
	}
	// Another one is waited for again, and so is this one once it has had GPUs.
	s.labels["restarted"] = map[string]string{"aliyun.accelerator/nvidia_name": "Tesla-T4"}
	if is, until := never(20 * time.Minute); is || !until.Equal(start.Add(30*time.Minute)) {
		t.Errorf("with another one: never is %t, until %s after the start", is, until.Sub(start))
	}
	delete(s.labels, "restarted")
	delete(s.labels, "gone")
	if is, _ := never(21 * time.Minute); !is {
		t.Error("it is not never without them")
	}
	s.labels["gone"] = map[string]string{"aliyun.accelerator/nvidia_name": "Tesla-T4"}
	if is, _ := never(22 * time.Minute); is {
		t.Error("it is given up at once")
	}
}

func TestClaimsOfAPodAreExplainedAsOne(t *testing.T) {
	site := newSite(t).node("mixed", "mixed", mode.Exclusive).node("topo", "dgx1", mode.Topology).node("share", "a10x4",
		mode.Share)
	named := func(name string, c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		c.Name = name
		return c
	}
	allocatedOn := func(node string) *resourceapi.ResourceClaim {
		c := named("there", claim(request("x", shareClass, amount("memory", "99Gi"))))
		c.Status.Allocation = &resourceapi.AllocationResult{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}}
		return c
	}
	for name, test := range map[string]struct {
		claims []*resourceapi.ResourceClaim
		want   string
	}{
		"each of another node": {
			[]*resourceapi.ResourceClaim{named("a", claim(request("r", shareClass))),
				named("b", claim(request("r", topologyClass)))},
			never + "no node has all requested devices at once",
		},
		"one too large": {
			[]*resourceapi.ResourceClaim{named("a", claim(request("r", shareClass))),
				named("b", claim(request("r", shareClass, amount("memory", "99Gi"))))},
			never + "claim b, request r: 99Gi of memory asked for; the largest GPU that matches has 22Gi (node share, " +
				"NVIDIA-A10)",
		},
		"four GPUs of one model, of two and two": {
			[]*resourceapi.ResourceClaim{sameAttribute(claim(request("r", wholeClass, count(4))), "gpu.aliyun.com/model")},
			never + "no node has all requested devices at once with matchAttribute gpu.aliyun.com/model",
		},
		"two GPUs of one model": {
			[]*resourceapi.ResourceClaim{sameAttribute(claim(request("r", wholeClass, count(2))), "gpu.aliyun.com/model")},
			"request r: the GPUs that match are all taken or too full: 4 GPUs on node mixed",
		},
		"two shares of one GPU": {
			[]*resourceapi.ResourceClaim{sameAttribute(claim(request("r", shareClass), request("s", shareClass)),
				"gpu.aliyun.com/uuid")},
			"request r: the GPUs that match are all taken or too full: 4 GPUs on node share. request s: the GPUs that match " +
				"are all taken or too full: 4 GPUs on node share",
		},
		"more than one GPU has of one GPU": {
			[]*resourceapi.ResourceClaim{
				sameAttribute(claim(request("r", shareClass, amount("memory", "12Gi")),
					request("s", shareClass, amount("memory", "12Gi"))), "gpu.aliyun.com/uuid")},
			never + "no node has all requested devices at once with matchAttribute gpu.aliyun.com/uuid",
		},
		"a claim that has its GPUs on another node": {
			[]*resourceapi.ResourceClaim{allocatedOn("topo"), named("b", claim(request("r", shareClass)))},
			"claim b, request r: the GPUs that match are on nodes that the pod's nodeSelector, its affinity or its other " +
				"claims exclude: share",
		},
		"claims that have their GPUs": {[]*resourceapi.ResourceClaim{allocatedOn("topo")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, test.want, site.explain(podOn(""), test.claims...).Message, "the message")
		})
	}
}

// GPUs of nodes that are alike are looked at once, but for a selector by UUID.
func TestGPUsAreToldApartByUUID(t *testing.T) {
	site := newSite(t).node("a", "a10x4", mode.Share).node("b", "a10x4", mode.Share)
	uuid := site.slices[1].UUIDs[2]
	for name, test := range map[string]struct{ selector, want string }{
		"one GPU": {fmt.Sprintf(`device.attributes["gpu.aliyun.com"].uuid == %q`, uuid), "the GPUs that match are all " +
			"taken or too full: 1 GPU on node b"},
		"all GPUs": {`device.attributes["gpu.aliyun.com"].exists(name, name == "uuid")`, "the GPUs that match are all " +
			"taken or too full: 8 GPUs on 2 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			got := site.explain(podOn(""), claim(request("gpu", shareClass, matching(test.selector)))).Message
			expect.Equal(t, "request gpu: "+test.want, got, "want %q", test.want)
		})
	}
}

// What was found out about GPUs must not outlive a change of them.
func TestNextLookSeesWhatChanged(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	explainer := explain.New(engine, unlimited)
	for step, test := range []struct {
		site *site
		want string
	}{
		{newSite(t), never + "request gpu: no node offers GPUs of class share.gpu.aliyun.com; no node offers any GPUs"},
		{newSite(t).node("n", "a10x4", mode.Share), "request gpu: the GPUs that match are all taken or too full: 4 GPUs " +
			"on node n"},
		{newSite(t).node("n", "a10x4", mode.Exclusive), never + "request gpu: no node offers GPUs of class " +
			"share.gpu.aliyun.com; there are GPUs in the mode exclusive"},
		{newSite(t).node("n", "t4x1", mode.Share).node("o", "a10x4", mode.Share), "request gpu: the GPUs that match are " +
			"all taken or too full: 5 GPUs on 2 nodes"},
	} {
		cluster, err := explainer.Look(test.site.published())
		expect.NoError(t, err)
		for range 2 {
			got, err := cluster.Explain(ctx, podOn(""), []*resourceapi.ResourceClaim{claim(request("gpu", shareClass))})
			if err != nil || got.Message != test.want {
				t.Errorf("step %d: got %q, %v, want %q", step, got.Message, err, test.want)
			}
		}
	}
}

// A pool of which a slice is missing offers nothing, and may be about to.
func TestPoolInPartSettlesNothing(t *testing.T) {
	site := newSite(t).node("topo", "dgx1", mode.Topology)
	site.slices = site.slices[:1]
	want := "request gpu: no node offers GPUs of class topology.gpu.aliyun.com; no node offers any GPUs"
	expect.Equal(t, want, site.explain(podOn(""), claim(request("gpu", topologyClass))).Message, "the message")
}

// BenchmarkThousandNodes measures 500 pods, each with a claim of its own, that wait
// on 1000 nodes of 8 GPUs: what a change of one node costs, and then each pod.
func BenchmarkThousandNodes(b *testing.B) {
	_, ctx := ktesting.NewTestContext(b)
	built := newSite(b)
	m := machine(b, "a100x8")
	for i := range 1000 {
		name := fmt.Sprintf("node-%d", i)
		built.publish(name, devices.Build(m, devices.Options{Pool: v1alpha1.PoolName(name), Mode: mode.Share, Slots: 20}))
	}
	published := built.published()
	explainer := explain.New(engine, unlimited)
	look := func() *explain.Cluster {
		cluster, err := explainer.Look(published)
		expect.NoError(b, err)
		return cluster
	}
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			look()
		}
	})
	ask := func(b *testing.B, cluster *explain.Cluster, i int) {
		b.Helper()
		c := claim(request("gpu", shareClass, attribute(fmt.Sprintf("index != %d", i%8)),
			amount("memory", fmt.Sprintf("%dGi", 1+i%500))))
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
