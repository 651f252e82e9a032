// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// What a Preparer works with, as the agent has it.
var (
	_ prepare.Cluster  = cluster.Reader{}
	_ prepare.Node     = preparerNode{}
	_ prepare.Listener = preparerListener{}
)

// preparerNode goes by what the publisher stored last, and by what is seen of the node's
// pods.
type preparerNode struct {
	publish.Observed
	agent   *agent
	running func(pod types.UID) (bool, error)
}

func (n preparerNode) Reserved(ctx context.Context, m *gpu.Machine) (deviceplugin.Reserved, error) {
	return n.agent.pods.Reserved(ctx, m)
}

func (n preparerNode) Running(pod types.UID) (bool, error) { return n.running(pod) }

func (n preparerNode) UsersOf(namespace, name string) []types.UID {
	return n.agent.users.of(namespace, name)
}

// preparerListener passes on what happens to claims: to the publisher, the sweeper and, in
// Events, to users.
type preparerListener struct{ agent *agent }

func (l preparerListener) Changed() {
	l.agent.publisher.Granted()
	l.agent.healthChanged.send()
	if l.agent.statuses != nil {
		l.agent.statuses.Changed()
	}
}

func (l preparerListener) ReleaseWanted(uids ...types.UID) { l.agent.want(uids...) }

// LimitsLifted says in the pods' Events that nothing holds them to what they were granted.
func (l preparerListener) LimitsLifted(c *resourceapi.ResourceClaim, requests []string) {
	for _, pod := range cluster.PodsOf(c) {
		l.agent.podEvents.Eventf(&pod, corev1.EventTypeNormal, v1alpha1.ReasonIsolationDisabled,
			"Claim %s: the limits of requests %q are lifted, what was granted still counts", c.Name, requests)
	}
}

// LimitsKept says in the pods' Events that what would lift their limits does not.
func (l preparerListener) LimitsKept(c *resourceapi.ResourceClaim, requests []string) {
	for _, pod := range cluster.PodsOf(c) {
		l.agent.podEvents.Eventf(&pod, corev1.EventTypeWarning, v1alpha1.ReasonIsolationKept,
			"Claim %s: the limits of requests %q hold, although CGPU_DISABLE or disableIsolation would lift them: "+
				"the cluster's administrators have kept that to themselves (LIMITS_LIFTED_BY=%s)", c.Name, requests,
			l.agent.Lifters)
	}
}

func (l preparerListener) RecordDamaged(ctx context.Context, d state.Damaged) {
	klog.FromContext(ctx).Error(d, "A claim's state was damaged", "claimUID", d.UID)
	l.agent.events.Warn(v1alpha1.ReasonStateDamaged, d.Error())
}
