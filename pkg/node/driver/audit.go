// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	auditwatch "github.com/gpushare/dra-driver-gpushare/pkg/node/audit/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// AuditConfig is how it is looked what processes hold of the GPUs.
type AuditConfig struct {
	// Client asks for it: it must not keep Prepare waiting.
	Client kubernetes.Interface
	// Interval is how often; 0 is never.
	Interval time.Duration
	// ExemptNamespaces are those whose pods may use GPUs without a claim, beside the driver's.
	ExemptNamespaces []string
	Eviction         audit.Eviction
}

var errIncomplete = errors.New("the records of prepared claims are being restored: what pods use is not judged yet")

// auditedPods are the node's pods as the audit sees them. Where pods are not watched, it is the first to see one that
// has joined a prepared claim.
func (a *agent) auditedPods() *auditwatch.Pods {
	if a.WatchPods {
		return &auditwatch.Pods{Watched: a.pods}
	}
	reader := cluster.Reader{Client: a.Audit.Client}
	fetch := func(ctx context.Context, namespace, name string) ([]*corev1.Pod, error) {
		c, err := reader.Claim(ctx, namespace, name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read claim %s/%s: %w", namespace, name, err)
		}
		if err := a.preparer.EnterReserved(ctx, c); err != nil {
			klog.FromContext(ctx).Error(err, "It is not noted who uses a claim, will try again", "claim", klog.KObj(c))
		}
		return reader.Pods(ctx, c)
	}
	return &auditwatch.Pods{Clock: clock.RealClock{}, Fetch: fetch}
}

// makeAudit makes what compares what processes hold with what was granted.
func (a *agent) makeAudit() *auditwatch.Watch {
	proc := filepath.Join(a.GPUs.HostRoot, "proc")
	return auditwatch.New(auditwatch.Options{
		NodeName: a.NodeName, OwnPod: a.PodUID, GPUs: a.GPUs.Uses(),
		Processes:  podcgroup.Remember(podcgroup.Processes(proc), clock.RealClock{}),
		Supervisor: func() (int, error) { return supervisorOf(proc, mps.Dir(a.Isolation.MPSDir)) }, OfPlugin: a.ofPlugin,
		OfDriver: a.ofDriver, Pods: a.auditedPods(), Granted: a.granted, Counted: a.limited.Counted, Client: a.Audit.Client,
		Events: report.New(a.podEvents, clock.RealClock{}), NodeEvents: a.events, Clock: clock.RealClock{},
		Interval: a.Audit.Interval, ExemptNamespaces: a.Audit.ExemptNamespaces,
		MPSOverheadMiB: a.Isolation.MPSOverheadMiB, ClientSlots: mps.MaxClients, Eviction: a.Audit.Eviction,
	})
}

// supervisorOf is the process of gpu-mps-supervisor that serves the directory, 0 if none does. Nobody else locks that
// file (mps.Dir), and no container of a tenant's has it.
func supervisorOf(proc string, dir mps.Dir) (pid int, err error) {
	return auditwatch.LockHolder(proc, dir.SupervisorLock())
}

// ofPlugin reports whether a device plugin gave the pod GPUs, or may have: whoever writes pods has no part in it.
func (a *agent) ofPlugin(ctx context.Context, pod audit.Pod) (bool, error) {
	if a.WatchPods {
		machine := a.preparer.Machine()
		if machine == nil {
			return false, held.ErrPodsUnread
		}
		reserved, err := a.taken.Reserved(ctx, machine)
		return slices.ContainsFunc(reserved.Pods, func(p held.Pod) bool { return p.UID == pod.UID }), err
	}
	// Other than what the kubelet said last, that it does not answer is told apart.
	devices, err := a.PodResources.Devices(ctx)
	for c, d := range devices {
		if c.Namespace == pod.Namespace && c.Pod == pod.Name && len(d.Resources) > 0 {
			return true, nil
		}
	}
	return false, err
}

// ofDriver reports whether another DRA driver gave the pod the GPU, as far as the kubelet has told.
func (a *agent) ofDriver(pod audit.Pod, uuid string) bool {
	return a.others.Has(pod.Namespace+"/"+pod.Name, uuid)
}

// granted is what is prepared, and offered.
func (a *agent) granted(ctx context.Context) (audit.Granted, error) {
	complete, err := a.preparer.Complete()
	if err == nil && !complete {
		err = errIncomplete
	}
	if err != nil {
		return audit.Granted{}, err
	}
	records, err := a.preparer.Recent(ctx)
	if err != nil {
		return audit.Granted{}, err
	}
	out := audit.Granted{Claims: make([]audit.Claim, 0, len(records)), Offered: map[int]bool{}}
	for _, r := range records {
		pods := slices.Concat(r.Pods, a.pods.UsersOf(r.Namespace, r.Name))
		slices.Sort(pods)
		out.Claims = append(out.Claims, audit.Claim{Namespace: r.Namespace, Name: r.Name, Grants: r.Grants,
			Pods: slices.Compact(pods), PodNames: r.PodNames})
	}
	for _, d := range a.publisher.Health(records) {
		indices, _, err := devices.ParseDeviceName(d.Device)
		if err != nil {
			continue
		}
		for _, index := range indices {
			out.Offered[index] = true
		}
	}
	return out, nil
}
