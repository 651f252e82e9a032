// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const nodeName = "n1"

// pool is the node's ResourceSlice with these GPUs; a nil one keeps its place in
// the order without being published.
func pool(models ...*gpu.GPU) *resourceapi.ResourceSlice {
	machine := &gpu.Machine{}
	for i, g := range models {
		if g == nil {
			continue
		}
		one := *g
		one.Index, one.UUID = i, fmt.Sprintf("GPU-%d", i)
		machine.GPUs = append(machine.GPUs, one)
	}
	name := v1alpha1.PoolName(nodeName)
	built := devices.Build(machine, devices.Options{Pool: name, Mode: mode.Share, Slots: 20,
		Isolation: "none"}).Pools[name]
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"},
		Spec: devices.SliceSpec(nodeName, name, built, built.Slices[0])}
}

var (
	v100 = &gpu.GPU{Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}
	t4   = &gpu.GPU{Model: "Tesla-T4", MemoryMiB: 15360}
	odd  = &gpu.GPU{Model: "Quadro-RTX-6000/8000", MemoryMiB: 24576}
)

func labels(name, memory, count string) map[string]string {
	return map[string]string{ack.NodeLabelModel: name, ack.NodeLabelMemory: memory, ack.NodeLabelCount: count}
}

func TestLabelsFollowTheFirstGPU(t *testing.T) {
	for name, test := range map[string]struct {
		gpus  []*gpu.GPU
		want  map[string]string
		mixed string
	}{
		"alike": {[]*gpu.GPU{v100, v100}, labels("Tesla-V100-SXM2-16GB", "16130MiB", "2"), ""},
		"mixed": {[]*gpu.GPU{t4, v100, t4}, labels("Tesla-T4", "15360MiB", "3"), "Tesla-T4 with 15360 MiB " +
			"(0, 2); Tesla-V100-SXM2-16GB with 16130 MiB (1)"},
		"the first left out": {[]*gpu.GPU{nil, t4}, labels("Tesla-T4", "15360MiB", "1"), ""},
		"an odd name":        {[]*gpu.GPU{odd}, labels("Quadro-RTX-6000-8000-e9054508", "24576MiB", "1"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, whole := view.Pool(nodeName, []*view.Slice{view.Read(pool(test.gpus...))})
			if !whole {
				t.Fatal("the pool is not whole")
			}
			expect.Equal(t, test.want, For(got), "labels")
			expect.Equal(t, test.mixed, Mixed(got), "mixed")
		})
	}
}

// site is a node at an API server, and the controller's work on it.
type site struct {
	t          *testing.T
	client     *fake.Clientset
	recorder   *record.FakeRecorder
	reconciler *reconciler
}

func newSite(t *testing.T) *site {
	t.Helper()
	recorder := record.NewFakeRecorder(10)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "u1", Labels: map[string]string{"zone": "a"}}}
	client := fake.NewClientset(node)
	return &site{t, client, recorder,
		&reconciler{Config: Config{Client: client.CoreV1().Nodes(), Events: report.New(recorder, clock.RealClock{})}}}
}

// reconcile lets the controller see what is there now.
func (s *site) reconcile(published ...*resourceapi.ResourceSlice) {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	var kept []*view.Slice
	for _, slice := range published {
		kept = append(kept, view.Read(slice))
	}
	expect.NoError(s.t, s.reconciler.reconcile(ctx, &s.node().ObjectMeta, kept))
}

func (s *site) node() *corev1.Node {
	s.t.Helper()
	return apitest.Get[*corev1.Node](s.t, s.client, "", nodeName)
}

// byHand is kubectl label --overwrite.
func (s *site) byHand(patch string) {
	s.t.Helper()
	_, err := s.client.CoreV1().Nodes().Patch(s.t.Context(), nodeName, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "kubectl-label"})
	expect.NoError(s.t, err)
}

func (s *site) has(want map[string]string) {
	s.t.Helper()
	want["zone"] = "a"
	expect.Equal(s.t, want, s.node().Labels, "labels")
}

// told checks that there is one Event with all the texts, or, without any, none.
func (s *site) told(texts ...string) {
	s.t.Helper()
	reporttest.Told(s.t, s.recorder, texts...)
}

func TestLabelsFollowTheGPUsAndStayWithoutAny(t *testing.T) {
	s := newSite(t)
	s.reconcile()
	s.has(map[string]string{})
	s.reconcile(pool(v100, v100))
	s.has(labels("Tesla-V100-SXM2-16GB", "16130MiB", "2"))
	s.reconcile()
	s.reconcile(pool())
	s.has(labels("Tesla-V100-SXM2-16GB", "16130MiB", "2"))
	s.reconcile(pool(t4))
	s.has(labels("Tesla-T4", "15360MiB", "1"))
	s.byHand(`{"metadata":{"labels":{"` + ack.NodeLabelModel + `":null}}}`)
	s.reconcile(pool(t4))
	s.has(labels("Tesla-T4", "15360MiB", "1"))
	s.told()
}

func TestLabelsOfSomebodyElseStay(t *testing.T) {
	s := newSite(t)
	s.byHand(`{"metadata":{"labels":{"` + ack.NodeLabelMemory + `":"16160MiB"}}}`)
	s.reconcile(pool(v100))
	s.has(map[string]string{ack.NodeLabelMemory: "16160MiB"})
	s.told("Warning "+v1alpha1.ReasonLabelsNotOurs, ack.NodeLabelMemory+` is "16160MiB", want "16130MiB"`,
		"kubectl label node n1 "+ack.NodeLabelModel+"- "+ack.NodeLabelMemory+"- "+ack.NodeLabelCount+"-")
	s.reconcile(pool(v100))
	s.told()

	// The same as ours is no reason to say anything.
	s.byHand(`{"metadata":{"labels":{"` + ack.NodeLabelMemory + `":"16130MiB"}}}`)
	s.reconcile(pool(v100))
	s.has(labels("Tesla-V100-SXM2-16GB", "16130MiB", "1"))
	s.told()

	// What was changed after we wrote it is not ours any more.
	s.byHand(`{"metadata":{"labels":{"` + ack.NodeLabelModel + `":"mine"}}}`)
	s.reconcile(pool(v100))
	s.has(labels("mine", "16130MiB", "1"))
	s.told("Warning "+v1alpha1.ReasonLabelsNotOurs, ack.NodeLabelModel+` is "mine"`, `conflict with "kubectl-label"`)
	s.byHand(`{"metadata":{"labels":{"` + ack.NodeLabelModel + `":null}}}`)
	s.reconcile(pool(v100))
	s.has(labels("Tesla-V100-SXM2-16GB", "16130MiB", "1"))
}

func TestMixedNodesAreTold(t *testing.T) {
	s := newSite(t)
	s.reconcile(pool(t4, v100))
	s.has(labels("Tesla-T4", "15360MiB", "2"))
	s.told("Normal "+v1alpha1.ReasonModelsDiffer, "Tesla-T4 with 15360 MiB (0); Tesla-V100-SXM2-16GB with 16130 MiB (1)",
		"those of GPU 0")
	s.reconcile(pool(t4, v100))
	s.told()
}

func TestChangesReachTheLoop(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newSite(t)
	cfg := s.reconciler.Config
	known := cache.New(cache.Options{Client: s.client})
	cfg.Cache, cfg.Labels, cfg.Features = known.Reader(), true, true
	work := New(cfg)
	var running sync.WaitGroup
	running.Go(func() { known.Run(ctx) })
	running.Go(func() { work.Run(ctx, 1) })
	apitest.Create(t, s.client, pool(v100))
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			labels := s.node().Labels
			return labels[ack.NodeLabelModel] == v100.Model && labels["nvidia.com/gpu.memory"] == "16130", nil
		})
	if err != nil {
		t.Errorf("the node was not labelled: %v", err)
	}
	cancel()
	running.Wait()
}
