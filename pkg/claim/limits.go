// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Lifters says what can lift the limits of shares. The node's label can in any case.
type Lifters string

// What can lift limits, from the most to the least.
const (
	// LiftersClaims: a container's environment, claims and DeviceClasses, which is
	// what ACK's users expect.
	LiftersClaims Lifters = "claims"
	// LiftersClasses: DeviceClasses, which administrators write.
	LiftersClasses Lifters = "classes"
	// LiftersNodes: nothing but the node's label.
	LiftersNodes Lifters = "nodes"
)

// ParseLifters reads a setting; empty is LiftersClaims.
func ParseLifters(s string) (Lifters, error) {
	known := []Lifters{LiftersClaims, LiftersClasses, LiftersNodes}
	switch l := Lifters(s); {
	case s == "":
		return LiftersClaims, nil
	case slices.Contains(known, l):
		return l, nil
	default:
		return "", fmt.Errorf("%q is none of %q", s, known)
	}
}

// Anyone says whether whoever writes a pod or a claim can lift its limits.
func (l Lifters) Anyone() bool { return l == "" || l == LiftersClaims }

// Keep takes back what the claim's configuration, and the containers that use it, lift
// of the grants' limits against the setting. It returns the requests that stay limited
// for that; of a claim, containers are those of its pods. It comes before Lift, which is
// for Anyone.
func (l Lifters) Keep(c *resourceapi.ResourceClaim, grants []Grant, containers []PodContainer) ([]string, error) {
	if l.Anyone() {
		return nil, nil
	}
	var kept []string
	for i := range grants {
		byClass, err := l.liftedByClass(c, grants[i])
		if err != nil {
			return nil, err
		}
		asked := grants[i].Config.IsolationDisabled() || slices.ContainsFunc(containers, func(p PodContainer) bool {
			return p.LiftsLimits() && p.UsesRequest(c.Name, grants[i].Request)
		})
		if !asked || byClass {
			continue
		}
		limited := false
		grants[i].Config = grants[i].Config.Merge(v1alpha1.GpuConfig{DisableIsolation: &limited})
		if !slices.Contains(kept, grants[i].Request) {
			kept = append(kept, grants[i].Request)
		}
	}
	return kept, nil
}

// liftedByClass says whether the DeviceClass of a grant's request lifts its limits, and
// may. What the claim itself says wins over its class, where it limits.
func (l Lifters) liftedByClass(c *resourceapi.ResourceClaim, g Grant) (bool, error) {
	if l != LiftersClasses || !g.Config.IsolationDisabled() {
		return false, nil
	}
	var ofClasses []resourceapi.DeviceAllocationConfiguration
	for _, config := range c.Status.Allocation.Devices.Config {
		if config.Source == resourceapi.AllocationConfigSourceClass {
			ofClasses = append(ofClasses, config)
		}
	}
	config, err := configFor(ofClasses, resourceapi.DeviceRequestAllocationResult{Request: g.Request})
	if err != nil {
		return false, err
	}
	return config.IsolationDisabled(), nil
}

// LiftsLimits says whether the container lifts its limits, by setting CGPU_DISABLE to
// "true" or "1".
func (c PodContainer) LiftsLimits() bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.Name == ack.EnvDisable && (e.Value == "true" || e.Value == "1")
	})
}

// Lift lifts the limits of the grants that a container uses which lifts its own. Those
// of a container, and containers that use one request, share their limits: lifted for
// one, by whatever, they are for all.
func Lift(grants []Grant, claimName string, containers []PodContainer) {
	for _, c := range containers {
		if !c.LiftsLimits() {
			continue
		}
		for i := range grants {
			if c.UsesRequest(claimName, grants[i].Request) {
				grants[i].lift()
			}
		}
	}
	for i := range grants {
		if slices.ContainsFunc(grants, func(g Grant) bool {
			return g.Config.IsolationDisabled() && g.SameContainer(
				grants[i])
		}) {
			grants[i].lift()
		}
	}
}

func (g *Grant) lift() { g.Config = g.Config.Merge(v1alpha1.WithoutIsolation()) }
