// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/nvidia"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/topology"
)

// grants are a claim's grants, if the node still serves them, with what isolates them.
func (p *Preparer) grants(w *preparation, c *resourceapi.ResourceClaim) ([]claim.Grant, error) {
	grants, err := p.allocated(c, w.inventory.Machine)
	if err != nil {
		return nil, err
	}
	if err := served(w.published, grants); err != nil {
		return nil, withReason(ReasonNotServed, err)
	}
	for i := range grants {
		m := grants[i].Mode
		backend, err := isolation.Find(p.options.Isolation, w.published.Isolation[m], m)
		if err != nil {
			return nil, err
		}
		isolateBy(&grants[i], backend)
	}
	return grants, nil
}

// allocated are the claim's grants, with what they ask of their GPUs. The record keeps that: by it, and not by labels
// or classes that may have changed, GPUs get their time slices back.
func (p *Preparer) allocated(c *resourceapi.ResourceClaim, m *gpu.Machine) ([]claim.Grant, error) {
	if p.options.NVIDIA {
		var err error
		if c, err = nvidia.Translate(c); err != nil {
			return nil, err
		}
	}
	grants, err := claim.Grants(c, p.options.Pool, m)
	if err != nil {
		return nil, err
	}
	ofNode := v1alpha1.TimeSliceDefault
	if set := p.timeSlice.Load(); set != nil {
		ofNode = *set
	}
	return grants, claim.AskTimeSlices(c, grants, ofNode)
}

// isolateBy has the back end hold the grant to its share.
func isolateBy(g *claim.Grant, backend isolation.Backend) {
	byKernel, _ := backend.KernelMemory(g.Mode, g.GPU.UUID)
	g.Isolation, g.KernelMemory = backend.Name(), byKernel && !g.Admin
	backend.Adjust(g)
}

// capped reports whether some of the grants have limits.
func capped(grants []claim.Grant) bool {
	return slices.ContainsFunc(grants, func(g claim.Grant) bool { return isolation.HasLimits(g) })
}

// use has the grants use what the pods' containers make of the claim. It returns the
// requests whose limits claim or containers would switch off, and may not.
func (p *Preparer) use(
	grants []claim.Grant, c *resourceapi.ResourceClaim, pods ...*corev1.Pod,
) (kept []string, err error) {
	var containers []claim.PodContainer
	for _, pod := range pods {
		containers = append(containers, claim.Containers(pod)...)
	}
	claim.Join(grants, c.Name, containers)
	if p.isolationDisabled.Load() {
		for i := range grants {
			grants[i].Config = grants[i].Config.Merge(v1alpha1.WithoutIsolation())
		}
		return nil, nil
	}
	return p.options.LimitsOffBy.SwitchOff(c, grants, containers)
}

// served reports grants that a node which publishes this cannot honour: the
// scheduler allocated them from what the node offered before, and does not count
// them against what it offers now. Grants for administrators hold nothing, so they
// stay good.
func served(published mode.Offer, grants []claim.Grant) error {
	for _, g := range grants {
		isolation := published.Isolation[g.Mode]
		switch {
		case g.Admin:
		case published.Mode.Serves(g.Mode) && g.Isolation != "" && isolation != "" && g.Isolation != isolation:
			return fmt.Errorf("request %q: what isolates the shares of the node's GPUs changed from %s to %s at this moment: "+
				"the kubelet tries again by itself",
				g.Request, g.Isolation, isolation)
		case published.Mode.Serves(g.Mode):
		case published.Mode == "":
			return fmt.Errorf("request %q was allocated device %q, but the node offers no GPUs now: the node's Events say "+
				"why; delete the pod to have it placed again",
				g.Request, g.Device)
		default:
			return fmt.Errorf("request %q was allocated device %q of mode %s, but the node has changed to mode %s since: "+
				"delete the pod to have it placed again",
				g.Request, g.Device, g.Mode, published.Mode)
		}
	}
	return nil
}

// order is the order in which containers see the GPUs, by UUID, where the
// driver sets it: for one request of several whole GPUs in mode topology. With
// a second request a container may have the GPUs of one or of both, and a
// variable that names GPUs which it does not have hides others.
func (p *Preparer) order(
	ctx context.Context, inv *Inventory, c *resourceapi.ResourceClaim, grants []claim.Grant,
) ([]string, error) {
	first := grants[0]
	other := slices.ContainsFunc(grants, func(g claim.Grant) bool { return g.Request != first.Request })
	if other || first.Mode != mode.Topology || first.Admin || !first.Config.LegacyEnv() {
		return nil, nil
	}
	if sets, err := p.setsOrder(ctx, c); err != nil || !sets {
		return nil, err
	}
	uuids := map[int]string{}
	var indices []int
	for _, g := range grants {
		uuids[g.GPU.Index] = g.GPU.UUID
		indices = append(indices, g.GPU.Index)
	}
	var order []string
	for _, index := range topology.Order(inv.Machine, indices) {
		order = append(order, uuids[index])
	}
	return order, nil
}

// setsOrder reports whether the containers that use the claim get their GPUs from it alone
// and leave their order to the driver.
func (p *Preparer) setsOrder(ctx context.Context, c *resourceapi.ResourceClaim) (bool, error) {
	pods, err := p.users(ctx, c)
	if err != nil {
		return false, fmt.Errorf("find out whether the pod sets the order of its GPUs itself: %w", err)
	}
	var beside []string
	for _, pod := range pods {
		leaves, others := claim.LeavesOrder(pod, c.Name)
		if !leaves {
			return false, nil
		}
		beside = append(beside, others...)
	}
	for name, read := range p.readClaims(ctx, c.Namespace, beside) {
		if read.err != nil {
			return false, fmt.Errorf("read claim %s/%s, whose GPUs a pod sees beside those of claim %s: %w",
				c.Namespace, name, c.Name, read.err)
		}
		if claim.BringsGPUs(read.claim) {
			return false, nil
		}
	}
	return true, nil
}

// withoutLimits names the requests that would have limits but for their
// configuration.
func withoutLimits(grants []claim.Grant) []string {
	var requests []string
	for _, g := range grants {
		if isolation.HasLimits(g) && g.Config.IsolationDisabled() && !slices.Contains(requests, g.Request) {
			requests = append(requests, g.Request)
		}
	}
	return requests
}

// severalInstances are the requests, one for each container, by which it has several MIG instances.
func severalInstances(grants []claim.Grant) []string {
	var requests []string
	for _, group := range claim.ContainerGroups(grants) {
		if len(group) > 1 && group[0].Mode == mode.MIG && !group[0].Admin {
			requests = append(requests, group[0].Request)
		}
	}
	return requests
}
