package claim

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

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
		if slices.ContainsFunc(grants, func(g Grant) bool { return g.Config.IsolationDisabled() && g.SameUser(grants[i]) }) {
			grants[i].lift()
		}
	}
}

func (g *Grant) lift() { g.Config = g.Config.Merge(v1alpha1.WithoutIsolation()) }
