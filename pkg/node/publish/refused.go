// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

const (
	// refusedFor is for how long a claim that was refused counts as allocated: the kubelet asks again within 90 seconds
	// while its pod is there.
	refusedFor = 5 * time.Minute
	// restoredFor is for how long a conflict counts that another process has published.
	restoredFor = 100 * time.Second
)

// Refused tells the publisher of a claim that the kubelet asked for and that was not prepared: the scheduler counts it
// all the same.
func (p *Publisher) Refused(c *resourceapi.ResourceClaim) {
	var devices []string
	for _, r := range claim.Held(c, p.pool()) {
		devices = append(devices, r.Device)
	}
	if len(devices) > 0 {
		p.setRefused(c.UID, refusedClaim{devices, p.Clock.Now().Add(refusedFor)})
	}
}

// NotRefused tells the publisher that a claim was prepared, or is not asked for any more.
func (p *Publisher) NotRefused(claim types.UID) { p.setRefused(claim, refusedClaim{}) }

func (p *Publisher) setRefused(claim types.UID, now refusedClaim) {
	p.mu.Lock()
	before := p.refusedClaims[claim]
	changed := !slices.Equal(before.devices, now.devices)
	if changed || len(now.devices) > 0 {
		// A pass that runs keeps what was told before.
		claims := map[types.UID]refusedClaim{}
		maps.Copy(claims, p.refusedClaims)
		claims[claim] = now
		maps.DeleteFunc(claims, func(_ types.UID, c refusedClaim) bool {
			return len(c.devices) == 0 || p.Clock.Now().After(c.until)
		})
		p.refusedClaims = claims
	}
	p.mu.Unlock()
	if changed {
		p.Wake()
	}
}

// restoreConflicts has the devices that are closed because of a conflict stay so until the kubelet has asked again,
// which takes up to restoredFor: the process before knew of claims that were refused, and this one does not. Each
// counts as allocated, for nobody gets any of them meanwhile.
func (p *Publisher) restoreConflicts(stored []resourceapi.ResourceSlice) {
	var closed []string
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			if slices.ContainsFunc(d.Taints, devices.IsTaint(v1alpha1.TaintConflict)) {
				closed = append(closed, d.Name)
			}
		}
	}
	if len(closed) > 0 {
		p.setRefused("", refusedClaim{closed, p.Clock.Now().Add(restoredFor)})
	}
}

// allocated are the devices that claims are known to have, where one of them was refused: what the others have, that
// one may have, too. The scheduler does not count orphans.
func (s snapshot) allocated() map[string]bool {
	allocated := map[string]bool{}
	for _, c := range s.refusedClaims {
		if s.now.After(c.until) {
			continue
		}
		for _, device := range c.devices {
			allocated[device] = true
		}
	}
	if len(allocated) == 0 {
		return nil
	}
	for _, r := range s.records {
		if _, orphan := s.orphans[r.UID]; orphan {
			continue
		}
		for _, g := range r.Grants {
			if !g.Admin {
				allocated[g.Device] = true
			}
		}
	}
	return allocated
}
