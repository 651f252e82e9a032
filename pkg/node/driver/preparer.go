// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/claimstatus"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// What a Preparer works with, as the agent has it.
var (
	_ prepare.Cluster  = cluster.Reader{}
	_ prepare.Node     = preparerNode{}
	_ prepare.Listener = preparerListener{}
)

// preparerNode is what is seen of the node's pods.
type preparerNode struct {
	*pods.Picture
	watch.Pods
}

// preparerListener passes on what happens to claims.
type preparerListener struct {
	events report.NodeEvents
	// releases is nil where nobody takes them.
	releases *claimstatus.Releases
	inUse    *seen.Since[types.UID]
}

func (l preparerListener) Released(uid types.UID) {
	l.inUse.Forget(uid)
	if l.releases != nil {
		l.releases.Released(uid)
	}
}

// limits says in pods' Events whether what would switch off their limits does, and what to know of MIG
// instances.
type limits struct {
	events record.EventRecorder
	offBy  claim.LimitsOffBy
}

func (l limits) tell(c *resourceapi.ResourceClaim, p prepare.Result) {
	off, kept := p.LimitsOff, p.LimitsKept
	if len(off) == 0 && len(kept) == 0 && len(p.Instances) == 0 {
		return
	}
	for _, pod := range cluster.PodsOf(c) {
		if len(kept) > 0 {
			l.events.Eventf(&pod, corev1.EventTypeWarning, v1alpha1.ReasonIsolationKept,
				"Claim %s: the limits of requests %q apply, although CGPU_DISABLE or disableIsolation would switch them off: "+
					"only administrators may do that here (LIMITS_LIFTED_BY=%s)", c.Name, kept, l.offBy)
		}
		if len(off) > 0 {
			l.events.Eventf(&pod, corev1.EventTypeNormal, v1alpha1.ReasonIsolationDisabled,
				"Claim %s: the limits of requests %q are switched off; what was granted still counts", c.Name, off)
		}
		if len(p.Instances) > 0 {
			l.events.Eventf(&pod, corev1.EventTypeNormal, v1alpha1.ReasonSeveralInstances,
				"Claim %s: a container has several MIG instances by request %s. A CUDA program may see only one of them: start "+
					"one process for each, with CUDA_VISIBLE_DEVICES, or ask for one larger instance: docs/mig.md", c.Name,
				strings.Join(p.Instances, ", "))
		}
	}
}

func (l preparerListener) RecordDamaged(ctx context.Context, d state.Damaged) {
	klog.FromContext(ctx).Error(d, "A claim's state was damaged", "claimUID", d.UID)
	l.events.Warn(v1alpha1.ReasonStateDamaged, d.Error())
}
