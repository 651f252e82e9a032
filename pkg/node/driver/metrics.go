// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	common "github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
)

const (
	// aliveLimit is how long the plugin has to answer what the kubelet asks it.
	aliveLimit = 5 * time.Second
	// auditStale is how old what is used of the GPUs may be to be shown, if it is not looked
	// at less often.
	auditStale = 10 * time.Second
)

// askedAtOnce is how many requests the plugin answers at one time.
const askedAtOnce = 4

// serveStatus serves /metrics, /readyz, which says why the plugin does not serve claims, and
// /healthz, which asks it as the kubelet does.
func (a *agent) serveStatus(ctx context.Context) {
	source := nodeSource{prepared: a.preparer.Prepared, machine: a.preparer.Machine, pods: a.taken.Reserved,
		publisher: a.publisher, daemons: mps.Dir(a.Isolation.MPSDir).Status,
		nodeDaemon: mps.Dir(a.Isolation.MPSDir).OfNode().Status, audit: a.lastUse, memoryLimits: a.limited.Kinds,
		clock: clock.RealClock{},
		stale: max(auditStale, 3*a.Audit.Interval)}
	a.Registry.MustRegister(metrics.NewNodeCollector(ctx, source.look))
	if probes.Off(a.MetricsAddress) {
		return
	}
	mux := probes.Handler(a.readiness(), func(r *http.Request) error {
		return CheckHealthy(r.Context(), a.Config)
	})
	mux.Handle("GET /metrics", common.Handler(a.Registry))
	// Anybody who reaches the node can ask.
	probes.ServeWhenFree(ctx, a.MetricsAddress, probes.AtOnce(askedAtOnce, mux))
}

// errUnreadGPUs is for a node whose NVIDIA driver may be missing.
var errUnreadGPUs = errors.New("the node's GPUs have not been read, or the NVIDIA driver does not answer: see the " +
	"node's Events")

// readiness is what has to be well for claims to be prepared.
func (a *agent) readiness() *probes.Checks {
	var ready probes.Checks
	ready.Add("kubelet", a.registration.missing)
	ready.Add("gpus", func() error {
		if a.preparer.Machine() == nil {
			return errUnreadGPUs
		}
		return nil
	})
	ready.Add("publish", func() error { return a.publisher.Status().Err })
	ready.Add("claims", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), aliveLimit)
		defer cancel()
		_, err := a.preparer.Prepared(ctx)
		return err
	})
	return &ready
}

// lastUse is what is used of the GPUs.
func (a *agent) lastUse() (audit.Snapshot, bool) {
	if a.used == nil {
		return audit.Snapshot{}, false
	}
	return a.used.Snapshot()
}

// nodeSource is where the metrics of a node come from.
type nodeSource struct {
	prepared  func(context.Context) ([]state.Record, error)
	machine   func() *gpu.Machine
	pods      func(context.Context, *gpu.Machine) (held.Reserved, error)
	publisher publisherStatus
	// daemons are those of single GPUs, nodeDaemon is the one for all where there is one.
	daemons, nodeDaemon func(uuid string) (mps.Status, error)
	audit               func() (audit.Snapshot, bool)
	// memoryLimits says who counts each GPU's memory for limits, by UUID.
	memoryLimits func() map[string]string
	clock        clock.PassiveClock
	// stale is how old what is used may be.
	stale time.Duration
}

// look is a metrics.NodeCollector's. What cannot be read is left out, beside the error.
func (s nodeSource) look(ctx context.Context) (metrics.Node, error) {
	records, err := s.prepared(ctx)
	errs := []error{err}
	h := metrics.Holdings{Machine: s.machine(), Unhealthy: s.publisher.Unhealthy()}
	for _, r := range records {
		if r.Phase != state.Prepared {
			continue
		}
		granted := metrics.Granted{Claim: r.Usage()}
		if len(r.Pods) <= 1 {
			granted.Pods = r.PodNames
		}
		h.Claims = append(h.Claims, granted)
	}
	if h.Machine != nil {
		reserved, err := s.pods(ctx, h.Machine)
		if !errors.Is(err, held.ErrPodsUnread) {
			errs = append(errs, err)
		}
		h.Reserved = reserved.GPU
	}
	if used, known := s.audit(); known && s.clock.Since(used.Time) < s.stale {
		h.Audit = &used
	}
	n := metrics.NodeOf(h)
	n.MemoryLimits = s.memoryLimits()
	status := s.publisher.Status()
	if status.GPUsUnread {
		errs = append(errs, errUnreadGPUs)
	}
	if usesMPS(status.Devices, h.Claims, mode.DaemonOfGPU) {
		n.Daemons = ofMPS(n, s.daemons)
	}
	if usesMPS(status.Devices, h.Claims, mode.DaemonOfNode) {
		n.Daemons = ofMPS(n, s.nodeDaemon)
	}
	n.Behind, n.SwitchWaiting = status.Behind.Seconds(), status.SwitchWaiting.Seconds()
	for _, d := range status.Devices {
		n.Devices = append(n.Devices, metrics.Device{Mode: d.Mode, Model: d.Model, Healthy: d.Unhealthy == ""})
	}
	if err := errors.Join(errs...); err != nil {
		return n, fmt.Errorf("read what the node has: %w", err)
	}
	return n, nil
}

// usesMPS reports whether devices or claims are isolated by that daemon of MPS. Where none is, the daemons of
// the GPUs have ended, and that is well.
func usesMPS(devices []publish.DeviceStatus, claims []metrics.Granted, by mode.Daemon) bool {
	is := func(isolation string) bool { return mode.IsolationNamed(isolation).Daemon == by }
	return slices.ContainsFunc(devices, func(d publish.DeviceStatus) bool { return is(d.Isolation) }) ||
		slices.ContainsFunc(claims, func(c metrics.Granted) bool {
			return slices.ContainsFunc(c.Grants, func(g claim.Grant) bool { return is(g.Isolation) })
		})
}

// ofMPS are the daemons of the node's GPUs; those GPUs have none that no status tells of.
func ofMPS(n metrics.Node, statusOf func(uuid string) (mps.Status, error)) []metrics.Daemon {
	var daemons []metrics.Daemon
	for _, g := range n.GPUs {
		if status, err := statusOf(g.UUID); err == nil && g.UUID != "" {
			daemons = append(daemons, metrics.Daemon{ID: g.ID, Ready: status.State == mps.Ready,
				Restarts: status.Restarts})
		}
	}
	return daemons
}

// publisherStatus is what metrics ask a *publish.Publisher.
type publisherStatus interface {
	Status() publish.Status
	Unhealthy() map[string]health.Unhealthy
}
