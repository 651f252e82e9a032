// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const (
	// placementLabel is by what deployments/options/pack-nodes goes.
	placementLabel = "gpu.aliyun.com/node-placement"
	// sharesPerNode is how many pods of each burst there are for each node, and mostShares
	// how many there are at most.
	sharesPerNode, mostShares = 5, 100
	// sharesInTurn is how many pods come one after the other, which are placed by what is
	// known of all before them; plainPods come at once among the shares and have none.
	sharesInTurn, plainPods = 40, 200
)

// sizesOfShares are those of the pods, in turn, in GiB.
var sizesOfShares = []int64{1, 8, 2, 12, 4}

// way is one in which shares find their nodes.
type way struct {
	name string
	// label is the pods' placement by the option; empty where they have none.
	label string
	// levels are the levels of a node that a claim prefers, best first, before it takes any.
	levels []int64
}

func ways() []way {
	return []way{
		{name: "neither"},
		{name: "affinity-binpack", label: "binpack"},
		{name: "affinity-spread", label: "spread"},
		{name: "level-binpack", levels: []int64{3, 2, 1}},
		{name: "level-spread", levels: []int64{0, 1, 2}},
	}
}

func (w way) template(gib int64) string { return fmt.Sprintf("%s-%d", w.name, gib) }

// requests are those of a claim.
func (w way) requests(gib int64) []resourceapi.DeviceRequest {
	share := one(string(mode.Share), amounts{v1alpha1.CapMemory: fmt.Sprintf("%dGi", gib)})
	if w.levels == nil {
		return share
	}
	exactly := share[0].Exactly
	alternative := func(name string, selectors ...resourceapi.DeviceSelector) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: exactly.DeviceClassName, Selectors: selectors,
			AllocationMode: exactly.AllocationMode, Count: exactly.Count, Capacity: exactly.Capacity}
	}
	var out []resourceapi.DeviceSubRequest
	for _, level := range w.levels {
		expression := fmt.Sprintf("device.attributes[%q].%s == %d", v1alpha1.DriverName, levelAttribute, level)
		out = append(out, alternative(fmt.Sprintf("level-%d", level),
			resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}))
	}
	return []resourceapi.DeviceRequest{{Name: share[0].Name, FirstAvailable: append(out, alternative("any"))}}
}

func (w way) kinds() []kind {
	kinds := make([]kind, 0, len(sizesOfShares))
	for _, gib := range sizesOfShares {
		k := kind{template: w.template(gib)}
		if w.label != "" {
			k.labels = map[string]string{placementLabel: w.label}
		}
		kinds = append(kinds, k)
	}
	return kinds
}

// placements measures which nodes shares go to, and what that takes.
type placements struct {
	only    []string
	fleet   *fleet
	classes []*resourceapi.DeviceClass
	table   table
}

func (p *placements) run(ctx context.Context, kubeconfig, scheduler, controllers, described string) error {
	if kubeconfig == "" {
		return errors.New("placements need a cluster: give its --kubeconfig")
	}
	c, err := connect(kubeconfig, scheduler, controllers)
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(ways(), func(w way) bool { return len(p.only) > 0 && !slices.Contains(p.only, w.name) })
	if err := p.make(ctx, c, all); err != nil {
		return err
	}
	if err := step("nodes", func() error { return c.register(ctx, p.fleet.nodes) }); err != nil {
		return err
	}
	p.fleet.nodes = c.nodes
	ctx, stop := context.WithCancel(ctx)
	var up sync.WaitGroup
	up.Go(func() { c.keepUp(ctx) })
	defer up.Wait()
	defer stop()
	pods, err := newBinder(ctx, c.client)
	if err != nil {
		return err
	}
	for _, w := range all {
		p.table.columns = append(p.table.columns, w.name)
		if err = step(w.name, func() error { return p.measure(ctx, c, pods, w) }); err != nil {
			break
		}
	}
	// What was measured before an error is worth having.
	fmt.Printf("%s; %d nodes, shares of %v GiB in turn\n\n", described, len(p.fleet.nodes), sizesOfShares)
	return errors.Join(err, p.table.write(os.Stdout))
}

// make makes what the pods need, and waits until the policy is in force.
func (p *placements) make(ctx context.Context, c *cluster, all []way) error {
	if err := c.make(ctx, p.classes, nil); err != nil {
		return err
	}
	for _, w := range all {
		for _, gib := range sizesOfShares {
			_, err := c.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Name: w.template(gib)},
				Spec: resourceapi.ResourceClaimTemplateSpec{
					Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: w.requests(gib)}}},
			}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("make ResourceClaimTemplate %s: %w", w.template(gib), err)
			}
		}
	}
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: map[string]string{placementLabel: "binpack"}},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: new("probe")}},
			Containers:     []corev1.Container{{Name: "main", Image: "none.invalid/never-run"}},
		},
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, settled, true, func(ctx context.Context) (bool, error) {
		created, err := c.client.CoreV1().Pods(namespace).Create(ctx, probe, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll}})
		return err == nil && created.Spec.Affinity != nil, err
	})
	if err != nil {
		return fmt.Errorf("wait until deployments/options/pack-nodes gives a pod an affinity: is it applied? %w", err)
	}
	return nil
}

// measure measures one way: a burst, pods without a claim among its shares, and pods that
// come in turn on empty nodes.
func (p *placements) measure(ctx context.Context, c *cluster, pods *binder, w way) error {
	published, err := p.fleet.published(ctx, contestant{mode: mode.Share, machine: "dgx1"})
	if err != nil {
		return err
	}
	levels := newLevels(c, pods, published, w.levels != nil)
	if _, err := c.publish(ctx, published); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { levels.keep(ctx) })
	defer keeping.Wait()
	defer stop()
	count := min(len(p.fleet.nodes)*sharesPerNode, mostShares)
	own, among := &series{}, &series{}
	// The first burst warms all up.
	if _, err := pods.burst(ctx, fewPods, w.kinds()...); err != nil {
		return err
	}
	if err := p.clear(ctx, pods, levels); err != nil {
		return err
	}
	written := levels.written()
	if err := c.measured(ctx, pods, count, own, w.kinds()...); err != nil {
		return err
	}
	at := fmt.Sprintf("%d pods at once", count)
	if err := p.write(ctx, at, w, pods, count, levels, written); err != nil {
		return err
	}
	p.table.set(at+": bound per second", w.name, fmt.Sprintf("%.0f", own.perSecond[0]))
	p.table.set(at+": create → bound, p50 / p90", w.name, own.burst.Summary(0.5, 0.9))
	p.table.set(at+": processor time of the scheduler per pod", w.name, own.schedulerPerPod.Summary(0.5))
	if err := c.measured(ctx, pods, plainPods, among, kind{}); err != nil {
		return err
	}
	p.table.set(fmt.Sprintf("%d pods without GPUs among them: bound per second; processor time of the scheduler per pod",
		plainPods), w.name, fmt.Sprintf("%.0f; %s", among.perSecond[0], among.schedulerPerPod.Summary(0.5)))
	if err := p.clear(ctx, pods, levels); err != nil {
		return err
	}
	written = levels.written()
	latency, err := pods.oneByOne(ctx, sharesInTurn, w.kinds()...)
	if err != nil {
		return err
	}
	at = fmt.Sprintf("%d pods in turn", sharesInTurn)
	if err := p.write(ctx, at, w, pods, sharesInTurn, levels, written); err != nil {
		return err
	}
	p.table.set(at+": create → bound, p50 / p90", w.name, latency.Summary(0.5, 0.9))
	return p.clear(ctx, pods, levels)
}

func (p *placements) clear(ctx context.Context, pods *binder, l *levels) error {
	if err := pods.clear(ctx); err != nil {
		return err
	}
	return l.settle(ctx)
}

// write fills the lines about where so many shares went, and what was written since.
func (p *placements) write(ctx context.Context, at string, w way, pods *binder, shares int, l *levels,
	since int) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, settled, true, func(context.Context) (bool, error) {
		return pods.allocated() == shares, nil
	})
	if err != nil {
		return fmt.Errorf("wait until %d claims are allocated: %w", shares, err)
	}
	if err := l.settle(ctx); err != nil {
		return err
	}
	granted := pods.granted()
	var gib []int64
	for _, n := range p.fleet.nodes {
		gib = append(gib, granted[v1alpha1.PoolName(n.Name)])
	}
	p.table.set(at+": nodes used", w.name, fmt.Sprint(len(granted)))
	p.table.set(at+": GiB on the fullest node, on the emptiest", w.name, fmt.Sprintf("%d, %d", slices.Max(gib),
		slices.Min(gib)))
	p.table.set(at+": ResourceSlices written", w.name, fmt.Sprint(l.written()-since))
	return nil
}

// allocated is how many claims are.
func (b *binder) allocated() int {
	count := 0
	for _, object := range b.claims.GetStore().List() {
		if claim, ok := object.(*resourceapi.ResourceClaim); ok && claim.Status.Allocation != nil {
			count++
		}
	}
	return count
}

// granted are the GiB of each pool that has any.
func (b *binder) granted() map[string]int64 {
	out := map[string]int64{}
	for _, object := range b.claims.GetStore().List() {
		claim, ok := object.(*resourceapi.ResourceClaim)
		if !ok || claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			memory := result.ConsumedCapacity[v1alpha1.CapMemory]
			out[result.Pool] += memory.Value() >> 30
		}
	}
	return out
}
