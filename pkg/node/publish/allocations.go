// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// allocations are the claims that have devices of the pool, by what is to be
// told about them: the pods that use a claim, or the claim itself if none does.
// Claims with administrator access do not count: they hold nothing, and a
// monitor on every node would keep all of them from ever changing their mode.
type allocations struct {
	names []string
	mode  mode.Mode
}

// add notes that somebody holds a device of a mode. Devices of several modes
// are published side by side on dynamic nodes only.
func (o *allocations) add(m mode.Mode, names ...string) {
	if o.mode != "" && o.mode != m {
		m = mode.Dynamic
	}
	o.mode = m
	o.names = append(o.names, names...)
}

// drainCheck is what a node that waits to change its mode found when it last looked.
type drainCheck struct {
	// found holds what the API server had, asked again when that is due.
	found allocations
	retry backoff.Tries
	// prepared are the claims that were prepared, and names who used them.
	prepared []types.UID
	names    []string
}

// occupants are the claims that keep the node in its mode: those that are prepared
// here, which costs nothing to know; without any, those that are allocated from the
// pool. While there is any it names some, not always all, and maybe one that is gone.
func (p *Publisher) occupants(ctx context.Context, s snapshot) (allocations, drainCheck, error) {
	check := s.drainCheck
	records, err := s.prepared()
	if err != nil {
		return allocations{}, check, err
	}
	var uids []types.UID
	var inUse []state.Record
	var found allocations
	for _, r := range records {
		if i := firstAllocated(r.Grants); i >= 0 {
			found.add(r.Grants[i].Mode)
			uids, inUse = append(uids, r.UID), append(inUse, r)
		}
	}
	if len(inUse) > 0 {
		if !slices.Equal(uids, check.prepared) {
			names, err := p.users(ctx, inUse)
			if err != nil {
				return allocations{}, check, err
			}
			check = drainCheck{prepared: uids, names: names}
		}
		found.names = check.names
		return found, check, nil
	}
	check.prepared, check.names = nil, nil
	if !check.retry.IsDue(s.now) {
		return check.found, check, nil
	}
	// What tolerates that the devices are closed is not prepared any more: it would keep
	// the node from ever changing its mode.
	found, err = p.allocatedTo(ctx, func(c *resourceapi.ResourceClaim) bool { return !claim.ToleratesSwitch(c, p.pool()) })
	if err != nil || len(found.names) == 0 {
		return found, check, err
	}
	return found, drainCheck{found: found, retry: check.retry.Plus(askAgain, p.Clock.Now())}, nil
}

// allAllocations are all claims that hold something of the pool.
func (p *Publisher) allAllocations(ctx context.Context, s snapshot) (allocations, error) {
	found, err := p.allocatedTo(ctx, func(*resourceapi.ResourceClaim) bool { return true })
	if err != nil {
		return allocations{}, err
	}
	records, err := s.prepared()
	if err != nil {
		return allocations{}, err
	}
	for _, r := range records {
		if i := firstAllocated(r.Grants); i >= 0 {
			found.add(r.Grants[i].Mode)
		}
	}
	return found, nil
}

// users tells who uses the prepared claims, of as many as an Event names.
func (p *Publisher) users(ctx context.Context, inUse []state.Record) ([]string, error) {
	var names []string
	for _, r := range inUse[:min(len(inUse), mostNamed)] {
		c, err := p.Client.ResourceV1().ResourceClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && c.UID != r.UID:
			names = append(names, "claim "+r.Namespace+"/"+r.Name+" (its pod is being stopped)")
		case err != nil:
			return nil, fmt.Errorf("look up who uses claim %s/%s: %w", r.Namespace, r.Name, err)
		default:
			names = append(names, usersOf(c)...)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	for _, r := range inUse[min(len(inUse), mostNamed):] {
		names = append(names, "claim "+r.Namespace+"/"+r.Name)
	}
	return names, nil
}

// allocatedTo lists who of the claims that count holds devices of the pool, and the mode that the pool
// must have been published in. A device whose name is not one of ours cannot
// have been published by any version of this driver and is left out.
func (p *Publisher) allocatedTo(ctx context.Context, counts func(*resourceapi.ResourceClaim) bool) (allocations,
	error) {
	var out allocations
	err := cluster.EachClaim(ctx, p.Client, func(c *resourceapi.ResourceClaim) {
		if !counts(c) {
			return
		}
		for _, r := range claim.Held(c, p.pool()) {
			if _, m, err := devices.ParseDeviceName(r.Device); err == nil && m.OfNode() {
				out.add(m, usersOf(c)...)
			}
		}
	})
	slices.Sort(out.names)
	out.names = slices.Compact(out.names)
	return out, err
}

// firstAllocated is the index of the first grant that holds something of the node's mode, -1 if none
// does. A MIG instance is in the way of no mode.
func firstAllocated(grants []claim.Grant) int {
	return slices.IndexFunc(grants, func(g claim.Grant) bool { return !g.Admin && g.Mode != mode.MIG })
}

func usersOf(c *resourceapi.ResourceClaim) []string {
	var pods []string
	for _, pod := range cluster.PodsOf(c) {
		pods = append(pods, "pod "+pod.Namespace+"/"+pod.Name)
	}
	if len(pods) == 0 {
		return []string{"claim " + c.Namespace + "/" + c.Name}
	}
	return pods
}

// mostNamed is how many of them an Event names.
const mostNamed = 10
