// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// kinds are the dimensions in which a search changes pods, empty all of them: requests, claims, alternatives, counts,
// all, amounts, selectors, compiling, loops, strings, written, constraints, containers, legacy, tolerations, writing.
type kinds []string

func (k kinds) has(kind string) bool { return len(k) == 0 || slices.Contains(k, kind) }

// changer makes and changes candidates.
type changer struct {
	random    *rand.Rand
	words     words
	resources []string
	kinds     kinds
	// labels are those that the policies mention.
	labels []string
}

func (m *changer) oneIn(n int) bool { return m.random.IntN(n) == 0 }

func pick[T any](m *changer, of ...T) T { return of[m.random.IntN(len(of))] }

// small is a number from 1, mostly a small one.
func (m *changer) small(most int) int {
	n := 1
	for n < most && m.random.IntN(3) > 0 {
		n++
	}
	return n
}

// start is a new candidate: some claims, or some containers with resources, of one class or of several.
func (m *changer) start() *candidate {
	if m.kinds.has("legacy") && m.kinds.has("constraints") && m.oneIn(6) {
		return m.template()
	}
	c := &candidate{Containers: []container{{}}}
	if m.kinds.has("containers") && m.oneIn(4) || m.kinds.has("legacy") && m.oneIn(8) {
		name, n := m.resource(), 1+m.random.IntN(8)
		c.Containers = nil
		for range n {
			c.Containers = append(c.Containers, container{Limits: map[string]int64{name: int64(m.small(4))}})
		}
		if m.oneIn(2) {
			c.Containers = append(c.Containers, container{Limits: map[string]int64{m.resource(): int64(m.small(32))}})
		}
		return c
	}
	n := 1
	if m.kinds.has("claims") {
		n = m.small(6)
	}
	class := m.class()
	for i := range n {
		claim := resourceapi.DeviceClaim{}
		requests := 1
		if m.kinds.has("requests") {
			requests = m.small(16)
		}
		first := m.request(class)
		for range requests {
			claim.Requests = append(claim.Requests, *first.DeepCopy())
		}
		c.Claims = append(c.Claims, claim)
		c.References = append(c.References, reference{Claim: i})
	}
	m.rename(c)
	if m.oneIn(2) {
		m.failLast(c)
	}
	return c
}

func (m *changer) class() string { return pick(m, m.words.classes...) }

func (m *changer) resource() string {
	for {
		name := pick(m, m.resources...)
		if m.kinds.has("legacy") && ofACK(name) || m.kinds.has("containers") && !ofACK(name) {
			return name
		}
	}
}

func (m *changer) request(class string) resourceapi.DeviceRequest {
	e := &resourceapi.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count:          1}
	if m.kinds.has("counts") && m.oneIn(4) {
		e.Count = int64(m.small(32))
	}
	if m.kinds.has("amounts") && m.oneIn(2) {
		e.Capacity = m.amounts()
	}
	return resourceapi.DeviceRequest{Exactly: e}
}

func (m *changer) amounts() *resourceapi.CapacityRequirements {
	out := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		"memory": resource.MustParse(pick(m, "1Gi", "1Gi", "2Gi", "3Gi", "8Gi", "20Gi", "40Gi", "500Gi"))}}
	if m.oneIn(3) {
		out.Requests["cores"] = resource.MustParse(pick(m, "5", "10", "50", "100", "0"))
	}
	if m.oneIn(8) {
		out.Requests["slots"] = resource.MustParse("1")
	}
	return out
}

// failLast adds a request to the last claim that cannot be met, so that all before it is tried.
func (m *changer) failLast(c *candidate) {
	if len(c.Claims) == 0 {
		return
	}
	claim := &c.Claims[len(c.Claims)-1]
	if len(claim.Requests) == 0 {
		return
	}
	r := *claim.Requests[len(claim.Requests)-1].DeepCopy()
	if r.Exactly == nil {
		r = m.request(r.FirstAvailable[0].DeviceClassName)
	}
	switch m.random.IntN(4) {
	case 0:
		r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse("500Gi"), "cores": resource.MustParse("100")}}
		if m.oneIn(2) {
			delete(r.Exactly.Capacity.Requests, "cores")
		}
	case 1:
		r.Exactly.DeviceClassName = m.class()
	case 2:
		if m.kinds.has("selectors") {
			r.Exactly.Selectors = append(r.Exactly.Selectors, expression(pick(m, "false", ours+`.model == "none"`)))
		}
	default:
		if m.kinds.has("counts") {
			r.Exactly.Count = int64(1 + m.random.IntN(32))
		}
	}
	if m.kinds.has("requests") || len(c.Claims) > 1 {
		if !m.kinds.has("requests") {
			claim.Requests = nil
		}
		claim.Requests = append(claim.Requests, r)
	}
	m.rename(c)
}

func expression(text string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: text}}
}

// rename names requests after their places, and leaves of the constraints what there still is.
func (m *changer) rename(c *candidate) {
	for i := range c.Claims {
		claim := &c.Claims[i]
		names := map[string]bool{}
		for j := range claim.Requests {
			r := &claim.Requests[j]
			r.Name = fmt.Sprintf("r%d", j)
			names[r.Name] = true
			for k := range r.FirstAvailable {
				r.FirstAvailable[k].Name = fmt.Sprintf("s%d", k)
				names[r.Name+"/"+r.FirstAvailable[k].Name] = true
			}
		}
		claim.Constraints = slices.DeleteFunc(claim.Constraints, func(of resourceapi.DeviceConstraint) bool {
			return slices.ContainsFunc(of.Requests, func(name string) bool { return !names[name] })
		})
	}
}

// join is a candidate with claims and containers of both.
func (m *changer) join(a, b *candidate) *candidate {
	out, of := a.clone(), b.clone()
	before := len(out.Claims)
	if m.kinds.has("claims") {
		out.Claims = append(out.Claims, of.Claims...)
		for _, r := range of.References {
			out.References = append(out.References, reference{r.Claim + before, r.Named})
		}
	}
	if m.kinds.has("containers") {
		out.Containers = append(out.Containers, of.Containers...)
	}
	return out
}

// change changes a candidate a little.
func (m *changer) change(of *candidate) *candidate {
	c := of.clone()
	for range m.small(4) {
		m.once(c)
	}
	m.rename(c)
	return c
}

func (m *changer) once(c *candidate) {
	switch m.random.IntN(10) {
	case 0:
		if m.kinds.has("claims") {
			m.changeReferences(c)
		}
	case 1:
		if m.kinds.has("containers") || m.kinds.has("legacy") {
			m.changeContainers(c)
		}
	case 2:
		m.failLast(c)
	case 3:
		if m.kinds.has("writing") {
			m.changeWriting(c)
		}
	default:
		if len(c.Claims) == 0 {
			if m.kinds.has("containers") || m.kinds.has("legacy") {
				m.changeContainers(c)
			}
			return
		}
		m.changeClaim(&c.Claims[m.random.IntN(len(c.Claims))])
	}
}

// changeWriting changes what is written when, and with which labels: those that policies know, too.
func (m *changer) changeWriting(c *candidate) {
	switch m.random.IntN(3) {
	case 0:
		c.PodFirst = !c.PodFirst
	case 1:
		c.Relabelled = !c.Relabelled
	default:
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		if m.oneIn(2) || len(m.labels) == 0 {
			clear(c.Labels)
			return
		}
		c.Labels[pick(m, m.labels...)] = pick(m, "", "0", "1", "2", "true", "false", "allowed")
	}
}

func (m *changer) changeReferences(c *candidate) {
	switch {
	case len(c.Claims) == 0:
		c.Claims = append(c.Claims,
			resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{m.request(m.class())}})
		c.References = append(c.References, reference{Claim: len(c.Claims) - 1})
	case m.oneIn(3): // a copy that can be changed by itself
		c.Claims = append(c.Claims, *c.Claims[m.random.IntN(len(c.Claims))].DeepCopy())
		c.References = append(c.References, reference{Claim: len(c.Claims) - 1, Named: m.oneIn(3)})
	case m.oneIn(2):
		for range m.small(8) {
			c.References = slices.Insert(c.References, m.random.IntN(len(c.References)+1),
				reference{Claim: m.random.IntN(len(c.Claims)), Named: m.oneIn(3)})
		}
	case len(c.References) == 0:
	case m.oneIn(2):
		at := m.random.IntN(len(c.References))
		c.References[at].Named = !c.References[at].Named
	default:
		at := m.random.IntN(len(c.References))
		c.References = slices.Delete(c.References, at, at+1)
	}
}

func (m *changer) changeContainers(c *candidate) {
	at := m.random.IntN(len(c.Containers))
	k := &c.Containers[at]
	switch m.random.IntN(7) {
	case 0:
		for range m.small(8) {
			c.Containers = append(c.Containers, c.clone().Containers[at])
		}
	case 1:
		if len(c.Containers) > 1 {
			c.Containers = slices.Delete(c.Containers, at, at+1)
		}
	case 2:
		k.Kind = pick(m, "", "init", "sidecar")
	case 3:
		for name := range k.Limits {
			delete(k.Limits, name)
			break
		}
	case 4:
		if m.kinds.has("legacy") {
			c.Labels = map[string]string{}
			if m.oneIn(3) {
				c.Labels[ack.PodLabelPlacement] = ack.RequireWholeDevice
			}
			if m.oneIn(2) {
				c.Labels[ack.PodLabelCount] = pick(m, "1", "2", "4", "8", "16", "32")
			}
		}
	default:
		if k.Limits == nil {
			k.Limits = map[string]int64{}
		}
		k.Limits[m.resource()] = int64(pick(m, 1, 1, 1, 2, 3, 4, 5, 8, 9, 16, 32, 100))
	}
}

func (m *changer) changeClaim(claim *resourceapi.DeviceClaim) {
	if len(claim.Requests) == 0 {
		claim.Requests = append(claim.Requests, m.request(m.class()))
		return
	}
	at := m.random.IntN(len(claim.Requests))
	r := &claim.Requests[at]
	switch m.random.IntN(9) {
	case 0, 1:
		if m.kinds.has("requests") {
			for range m.small(6) {
				claim.Requests = slices.Insert(claim.Requests, m.random.IntN(len(claim.Requests)+1), *r.DeepCopy())
				r = &claim.Requests[at]
			}
		}
	case 2:
		claim.Requests = slices.Delete(claim.Requests, at, at+1)
	case 3:
		if m.kinds.has("requests") {
			claim.Requests = append(claim.Requests, m.request(m.class()))
		}
	case 4:
		m.changeConstraints(claim)
	case 5:
		if m.kinds.has("alternatives") {
			m.changeAlternatives(r)
		}
	case 6: // the same change of all
		class := m.class()
		capacity := m.amounts()
		capacities := m.kinds.has("amounts") && m.oneIn(2)
		for i := range claim.Requests {
			for _, s := range partsOf(&claim.Requests[i]) {
				if capacities {
					*s.capacity = capacity.DeepCopy()
				} else {
					*s.class = class
				}
			}
		}
	default:
		parts := partsOf(r)
		m.changePart(parts[m.random.IntN(len(parts))])
	}
}
