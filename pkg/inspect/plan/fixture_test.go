// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// site is a cluster to plan for.
type site struct{ plan.Input }

func newSite(t testing.TB) *site {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	return &site{plan.Input{Snapshot: scheduling.Snapshot{Classes: classes}, Now: time.Unix(0, 0)}}
}

// gpus are so many GPUs of 15 GiB.
func gpus(n int) *gpu.Machine {
	m := &gpu.Machine{}
	for i := range n {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "Tesla-T4", MemoryMiB: 15360})
	}
	return m
}

// node adds a node that offers so many GPUs in a mode.
func (s *site) node(name string, n int, m mode.Mode, options ...func(*corev1.Node)) {
	s.offer(name, devices.Build(gpus(n), devices.Options{Pool: v1alpha1.PoolName(name), Mode: m, Slots: 20,
		Isolation: "none"}), options...)
}

// spreadNode adds one whose shares are spread.
func (s *site) spreadNode(name string, n int) {
	limits := map[string]gpu.Amount{}
	for _, g := range gpus(n).GPUs {
		limits[g.UUID] = gpu.Amount{Units: 15, Shares: 1}
	}
	s.offer(name, devices.Build(gpus(n), devices.Options{Pool: v1alpha1.PoolName(name), Mode: mode.Share, Slots: 20,
		Isolation: "none", Limits: limits}))
}

func (s *site) offer(name string, resources resourceslice.DriverResources, options ...func(*corev1.Node)) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, option := range options {
		option(node)
	}
	s.Nodes = append(s.Nodes, node)
	s.Slices = append(s.Slices, published.Slices(name, resources)...)
}

// network adds a device of another driver that all nodes reach.
func (s *site) network(driver string) {
	s.Slices = append(s.Slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourceapi.ResourceSliceSpec{Driver: driver, AllNodes: ptr.To(true),
			Devices: []resourceapi.Device{{Name: "only"}},
			Pool:    resourceapi.ResourcePool{Name: driver, Generation: 1, ResourceSliceCount: 1}}})
}

func allocatable(amounts map[corev1.ResourceName]string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Status.Allocatable = corev1.ResourceList{}
		for name, amount := range amounts {
			node.Status.Allocatable[name] = resource.MustParse(amount)
		}
	}
}

// read adds manifests.
func (s *site) read(t testing.TB, text string) {
	t.Helper()
	r := manifests.Reader{Namespace: "team"}
	expect.NoError(t, r.Read("m.yaml", strings.NewReader(text)))
	s.Manifests = r.Manifests()
}

func (s *site) plan(t testing.TB) *plan.Plan {
	t.Helper()
	made, err := plan.Of(t.Context(), s.Input)
	expect.NoError(t, err)
	return made
}

// verdicts are where the pods land, in short: pod=node:devices, or pod=-.
func verdicts(p *plan.Plan) []string {
	var out []string
	for _, pod := range p.Pods {
		if pod.Node == "" {
			out = append(out, pod.Name+"=-")
			continue
		}
		out = append(out, pod.Name+"="+pod.Node+":"+strings.Join(pod.Devices, "+"))
	}
	return out
}

func printed(t testing.TB, p *plan.Plan) string {
	t.Helper()
	var text strings.Builder
	expect.NoError(t, p.Print(&text, inspect.Style{}))
	return text.String()
}

// workload is a manifest of a Deployment, or another kind like it.
func workload(kind string, replicas int, resources string, more ...string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: train}
spec:
  replicas: %d
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train%s}}
    spec:
      containers:
      - {name: main, image: train, resources: {limits: {%s}}}
`, kind, replicas, strings.Join(more, ""), resources)
}
