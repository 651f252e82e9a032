// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

const (
	// gpusLimit leaves the rest of the kubelet's 45 s to what comes after.
	gpusLimit = 25 * time.Second
	// leftoverMost is for how long the kubelet is refused a claim's release because its pods have processes. The kubelet
	// asks when the runtime has stopped all containers that it knows. It kills what is left in a pod's control group only
	// after its request has succeeded (kubelet, SyncTerminatingPod before SyncTerminatedPod): a process that the runtime
	// has lost would keep the pod Terminating for good.
	leftoverMost = time.Minute
)

// driver answers the kubelet. It holds no state of its own: during a rolling
// update the kubelet may ask either of two instances.
type driver struct {
	preparer *prepare.Preparer
	// read is closed when the node's GPUs were read first, or could not be.
	read <-chan struct{}
	// limits tells users whose limits are off. orphans is told whose release is wanted.
	limits  limits
	orphans *orphans.Sweeper
	// failures tells users why what they have deleted does not end.
	failures unprepareFailures
	// inUse is since when claims have been refused to be unprepared because their pods have processes.
	inUse *seen.Since[types.UID]
	// publisher is told what became of the ResourceSlice.
	publisher *publish.Publisher
	// health is told to the kubelet.
	health *healthReports
	counts *metrics.Plugin
	// fail ends the process for an error that cannot be recovered from.
	fail context.CancelCauseFunc
}

var _ kubeletplugin.DRAPlugin = &driver{}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin]. Claims fail or
// succeed one by one.
func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	if len(claims) == 0 {
		return nil, nil // CheckHealthy asks
	}
	start := time.Now()
	d.waitForGPUs(ctx)
	results := make([]kubeletplugin.PrepareResult, len(claims))
	var wg sync.WaitGroup
	for i, c := range claims {
		wg.Go(func() { results[i] = d.prepareClaim(ctx, c, start) })
	}
	wg.Wait()
	byUID := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for i, c := range claims {
		byUID[c.UID] = results[i]
	}
	return byUID, nil
}

// waitForGPUs waits for the GPUs to be read after the start, which takes long only
// beside one that hangs. The kubelet tries a claim that is refused again only after a
// minute or more.
func (d *driver) waitForGPUs(ctx context.Context) {
	select {
	case <-d.read:
	case <-ctx.Done():
	case <-time.After(gpusLimit):
	}
}

// prepareClaim prepares a claim of a call that came at start, and tells what became of it.
func (d *driver) prepareClaim(
	ctx context.Context, c *resourceapi.ResourceClaim, start time.Time,
) kubeletplugin.PrepareResult {
	logger := klog.FromContext(ctx)
	prepared, err := d.preparer.Prepare(ctx, c)
	d.counts.Prepared(time.Since(start), string(prepare.ReasonOf(err)))
	d.limits.tell(c, prepared)
	d.orphans.Want(prepare.HeldBy(err)...)
	if err != nil {
		d.publisher.Refused(c)
		logger.Error(err, "Preparing a claim failed", "claim", klog.KObj(c), "claimUID", c.UID, "heldBy", usage.InUseBy(err))
		// The kubelet says it in the pod's Events.
		return kubeletplugin.PrepareResult{
			Err: errors.New(text.Bound(fmt.Sprintf("claim %s/%s: %v", c.Namespace, c.Name, err), report.Most))}
	}
	d.publisher.NotRefused(c.UID)
	logger.V(2).Info("Prepared a claim", "claim", klog.KObj(c), "claimUID", c.UID, "devices", len(prepared.Devices))
	return kubeletplugin.PrepareResult{Devices: prepared.Devices}
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (d *driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	logger := klog.FromContext(ctx)
	result := make(map[types.UID]error, len(claims))
	for _, c := range claims {
		start := time.Now()
		err := d.preparer.Unprepare(ctx, c.UID)
		d.counts.Unprepared(time.Since(start), string(prepare.ReasonOf(err)))
		held := prepare.HeldBy(err)
		d.orphans.Want(held...)
		switch {
		case err == nil:
			d.publisher.NotRefused(c.UID)
			logger.V(2).Info("Unprepared a claim", "claim", c.NamespacedName, "claimUID", c.UID)
		case slices.Contains(held, c.UID) && d.inUse.For(c.UID) >= leftoverMost:
			logger.Error(err, "Processes have outlived their pod: the kubelet may end the pod, which kills them, and the claim "+
				"stays held until they have ended", "claim", c.NamespacedName, "claimUID", c.UID)
			err = nil
		default:
			logger.Error(err, "Unpreparing a claim failed", "claim", c.NamespacedName, "claimUID", c.UID)
			d.failures.tell(ctx, c, err)
		}
		result[c.UID] = err
	}
	return result, nil
}

// HandleError implements [kubeletplugin.DRAPlugin].
func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	runtime.HandleErrorWithContext(ctx, err, msg)
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		d.publisher.SetDropped()
	case errors.Is(err, kubeletplugin.ErrRecoverable):
		d.publisher.ReportFailed(fmt.Errorf("%s: %w", msg, err))
	default:
		d.fail(fmt.Errorf("%s: %w", msg, err))
	}
}

// WatchHealthStatus implements [kubeletplugin.DRAPlugin].
func (d *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	return d.health.watch(ctx, reports)
}

func (a *agent) startHelper(ctx context.Context, nodeUID types.UID, read <-chan struct{}) error {
	if err := removeReadyFile(a.ReadyFile); err != nil {
		return err
	}
	a.calls = &calls{onRegistered: a.registered, counts: a.counts, busy: a.Busy}
	// The end of ctx would break off calls of the kubelet: see stopHelper.
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx),
		&driver{preparer: a.preparer, read: read, publisher: a.publisher, fail: a.fail, health: a.healthReports(),
			counts: a.counts, limits: limits{a.podEvents, a.LimitsOffBy}, orphans: a.orphans,
			failures: unprepareFailures{a.podEvents, a.reader()}, inUse: a.inUse},
		kubeletplugin.DriverName(v1alpha1.DriverName),
		kubeletplugin.KubeClient(a.Client),
		kubeletplugin.NodeName(a.NodeName),
		kubeletplugin.NodeUID(nodeUID),
		kubeletplugin.PluginDataDirectoryPath(a.PluginDir),
		kubeletplugin.RegistrarDirectoryPath(a.RegistrarDir),
		kubeletplugin.RollingUpdate(a.PodUID),
		// Claims are locked one by one, across instances too (pkg/node/state).
		kubeletplugin.Serialize(false),
		kubeletplugin.GRPCInterceptor(a.calls.intercept),
	)
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	a.helper = helper
	return nil
}

// registered is called when the kubelet has registered this instance, and asks it from now on.
func (a *agent) registered() {
	a.registration.done()
	// The instance before may have prepared claims since: their CDI specs are as its version writes them.
	signal.Send(a.recoverAgain)
	if m := a.preparer.Machine(); m != nil && len(m.Partitioned) > 0 {
		// It may also have made and destroyed MIG instances.
		signal.Send(a.rescan)
	}
	if err := makeReadyFile(a.ReadyFile); err != nil {
		a.fail(err)
	}
}

// publish has the node's ResourceSlices be these from now on.
func (a *agent) publish(ctx context.Context, resources resourceslice.DriverResources) error {
	a.first.Do(func() {
		if err := cluster.WriteFirst(ctx, a.Client, a.NodeName, a.nodeUID, resources); err != nil {
			klog.FromContext(ctx).Error(err, "The helper library writes the first ResourceSlices, a second later")
		}
	})
	return a.helper.PublishResources(ctx, resources)
}

func (a *agent) stopHelper(ctx context.Context) {
	if err := a.calls.drain(context.WithoutCancel(ctx), drainQuiet, drainLimit); err != nil {
		klog.FromContext(ctx).Error(err, "Stopping although the kubelet still asks")
	}
	a.helper.Stop()
}
