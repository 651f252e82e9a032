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

// LimitsOffBy says what can switch off the limits of shares, as the setting LIMITS_LIFTED_BY does. The node's label can
// in any case.
type LimitsOffBy string

// What can switch limits off, from the most to the least.
const (
	// LimitsOffByClaims: a container's environment, claims and DeviceClasses, which is
	// what ACK's users expect.
	LimitsOffByClaims LimitsOffBy = "claims"
	// LimitsOffByClasses: DeviceClasses, which administrators write.
	LimitsOffByClasses LimitsOffBy = "classes"
	// LimitsOffByNodes: nothing but the node's label.
	LimitsOffByNodes LimitsOffBy = "nodes"
)

// ParseLimitsOffBy reads a setting; empty is LimitsOffByClaims.
func ParseLimitsOffBy(s string) (LimitsOffBy, error) {
	known := []LimitsOffBy{LimitsOffByClaims, LimitsOffByClasses, LimitsOffByNodes}
	switch l := LimitsOffBy(s); {
	case s == "":
		return LimitsOffByClaims, nil
	case slices.Contains(known, l):
		return l, nil
	default:
		return "", fmt.Errorf("%q is none of %q", s, known)
	}
}

// Anyone reports whether whoever writes a pod or a claim can switch its limits off.
func (l LimitsOffBy) Anyone() bool { return l == "" || l == LimitsOffByClaims }

// SwitchOff switches off the grants' limits where the claim's configuration, or a container that uses them, says so and
// may. It returns the requests that stay limited because they may not; of a claim, containers are those of its pods.
func (l LimitsOffBy) SwitchOff(
	c *resourceapi.ResourceClaim, grants []Grant, containers []PodContainer,
) (kept []string, err error) {
	if !l.Anyone() {
		if kept, err = l.keepLimits(c, grants, containers); err != nil {
			return nil, err
		}
		containers = nil
	}
	switchLimitsOff(grants, c.Name, containers)
	return kept, nil
}

// keepLimits takes back what the claim's configuration, and the containers that use it, switch off against the setting.
func (l LimitsOffBy) keepLimits(
	c *resourceapi.ResourceClaim, grants []Grant, containers []PodContainer,
) ([]string, error) {
	var kept []string
	for i := range grants {
		byClass, err := l.offByClass(c, grants[i])
		if err != nil {
			return nil, err
		}
		asked := grants[i].Config.IsolationDisabled() || slices.ContainsFunc(containers, func(p PodContainer) bool {
			return p.switchesLimitsOff() && p.UsesRequest(c.Name, grants[i].Request)
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

// offByClass reports whether the DeviceClass of a grant's request switches its limits off, and
// may. What the claim itself says wins over its class, where it limits.
func (l LimitsOffBy) offByClass(c *resourceapi.ResourceClaim, g Grant) (bool, error) {
	if l != LimitsOffByClasses || !g.Config.IsolationDisabled() {
		return false, nil
	}
	config, err := classConfig(c, g.Request)
	if err != nil {
		return false, err
	}
	return config.IsolationDisabled(), nil
}

// switchesLimitsOff reports whether the container switches its limits off, by setting CGPU_DISABLE to
// "true" or "1".
func (c PodContainer) switchesLimitsOff() bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.Name == ack.EnvDisable && (e.Value == "true" || e.Value == "1")
	})
}

// switchLimitsOff switches off the limits of the grants that such a container uses. Those
// of a container, and containers that use one request, share their limits: off for one, by
// whatever, they are off for all.
func switchLimitsOff(grants []Grant, claimName string, containers []PodContainer) {
	for _, c := range containers {
		if !c.switchesLimitsOff() {
			continue
		}
		for i := range grants {
			if c.UsesRequest(claimName, grants[i].Request) {
				grants[i].switchOff()
			}
		}
	}
	for i := range grants {
		if slices.ContainsFunc(grants, func(g Grant) bool {
			return g.Config.IsolationDisabled() && g.SameContainer(
				grants[i])
		}) {
			grants[i].switchOff()
		}
	}
}

func (g *Grant) switchOff() { g.Config = g.Config.Merge(v1alpha1.WithoutIsolation()) }
