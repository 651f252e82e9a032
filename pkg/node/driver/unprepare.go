// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// usersLimit is how long the kubelet's answer may wait for the API server to name a claim's pods.
const usersLimit = 2 * time.Second

// unprepareFailures says in the Events of a claim and its pods why they do not end: of NodeUnprepareResources the
// kubelet says nothing there, and the pods stay Terminating.
type unprepareFailures struct {
	events record.EventRecorder
	claims prepare.Cluster
}

// tell says nothing where processes of the pods still run: that ends by itself, mostly within a second.
func (f unprepareFailures) tell(ctx context.Context, c kubeletplugin.NamespacedObject, err error) {
	if len(prepare.HeldBy(err)) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), usersLimit)
	defer cancel()
	objects := []corev1.ObjectReference{report.Claim(c.Namespace, c.Name, c.UID)}
	// A claim that cannot be read, or was created again, has no pods that are known.
	if now, err := f.claims.Claim(ctx, c.Namespace, c.Name); err == nil && now.UID == c.UID {
		objects = append(objects, cluster.PodsOf(now)...)
	}
	for _, object := range objects {
		f.events.Eventf(&object, corev1.EventTypeWarning, v1alpha1.ReasonUnprepareFailed,
			"The devices of claim %s could not be released, which is tried again: %v", c.Name, err)
	}
}
