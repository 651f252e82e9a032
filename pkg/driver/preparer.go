package driver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// What a Preparer works with, as the agent has it.
var (
	_ prepare.Cluster  = preparerCluster{}
	_ prepare.Node     = preparerNode{}
	_ prepare.Listener = preparerListener{}
)

// preparerCluster asks the API server.
type preparerCluster struct{ agent *agent }

func (c preparerCluster) Pods(ctx context.Context, claim *resourceapi.ResourceClaim) ([]*corev1.Pod, error) {
	return c.agent.podsWith(ctx, claim)
}

func (c preparerCluster) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return c.agent.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (c preparerCluster) AllocatedClaims(ctx context.Context) ([]*resourceapi.ResourceClaim, error) {
	return c.agent.allocated(ctx)
}

// preparerNode goes by what the publisher stored last, and by what is seen of the node's
// pods.
type preparerNode struct {
	agent   *agent
	running func(pod types.UID) (bool, error)
}

func (n preparerNode) Published(ctx context.Context) mode.Offer {
	return n.agent.checkpoint().Published(ctx)
}

func (n preparerNode) PublishedIsolation(ctx context.Context, m mode.Mode) (string, error) {
	return n.agent.offeredIsolation(ctx, m)
}

func (n preparerNode) Draining(ctx context.Context) bool { return n.agent.checkpoint().Closed(ctx) }

func (n preparerNode) Reserved(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	return n.agent.pods.Soon(ctx, m)
}

func (n preparerNode) Running(pod types.UID) (bool, error) { return n.running(pod) }

func (n preparerNode) UsersOf(namespace, name string) []types.UID {
	return n.agent.users.of(namespace, name)
}

// preparerListener passes on what happens to claims: to the publisher, the sweeper and, in
// Events, to users.
type preparerListener struct{ agent *agent }

func (l preparerListener) Changed() { l.agent.publisher.Granted() }

func (l preparerListener) ReleaseWanted(uids ...types.UID) { l.agent.want(uids...) }

func (l preparerListener) LimitsLifted(c *resourceapi.ResourceClaim, requests []string) {
	l.agent.tellLifted(c, requests)
}

func (l preparerListener) LimitsKept(c *resourceapi.ResourceClaim, requests []string) {
	l.agent.tellKept(c, requests)
}

func (l preparerListener) RecordDamaged(ctx context.Context, d state.Damaged) {
	klog.FromContext(ctx).Error(d, "A claim's state was damaged", "claimUID", d.UID)
	l.agent.events.Warn(v1alpha1.ReasonStateDamaged, d.Error())
}
